// Where the inputs of activation checkpoints wait for backward, and what the checkpoints cost. One for each training;
// the engine makes it from the ds_config's block `activation_checkpointing` and names it for the checkpoints of a
// forward:
//
//   const nn::ActivationStore::Scope scope(store);   // nn::checkpoint on this thread keeps its inputs in `store`
//
// Without a scope inputs stay where they are. Used by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace tessera::nn {

// Where kept tensors wait that are not to stay in memory. engine/nvme_activations.h is one.
class ActivationFile {
 public:
  virtual ~ActivationFile() = default;
  virtual size_t write(const at::Tensor& tensor) = 0;            // on the CPU, dense; a copy is taken. Its number
  virtual void read(size_t number, const at::Tensor& into) = 0;  // of the same size and strides; any number of times
  virtual void forget(size_t number) noexcept = 0;
};

// Copies of a device's tensors in the host's memory, made beside what the device computes. engine/host_activations.h is
// one.
class HostCopies {
 public:
  class Copy {
   public:
    virtual ~Copy() = default;
    virtual at::Tensor restore() const = 0;  // on the device; any number of times
  };

  virtual ~HostCopies() = default;
  virtual std::shared_ptr<Copy> keep(const at::Tensor& tensor) = 0;  // dense, on the device
};

struct ActivationStoreOptions {
  bool in_host_memory = false;  // copied to the host in forward and back in backward; on a CPU that is where they are
  std::shared_ptr<HostCopies> host_copies = {};  // of dense floating-point inputs; null: forward waits for each copy

  // Above 0: floating-point inputs are copied into buffers with room for so many checkpoints, made once and used again
  // in every step, so that what waits long does not lie scattered between what lives briefly.
  int64_t slots = 0;

  // Floating-point inputs that fill a page go there; the others stay in host memory.
  std::shared_ptr<ActivationFile> file;
};

// Of all checkpoints since the last take_costs().
struct CheckpointCosts {
  int64_t checkpoints = 0;
  int64_t recomputations = 0;
  double forward_seconds = 0;
  double recomputation_seconds = 0;
};

// One tensor that waits. Values are those of when it was kept, or restore() throws.
class KeptTensor {
 public:
  // Without a graph; undefined if such a one was kept.
  at::Tensor restore() const;

 private:
  friend class ActivationStore;
  struct InFile;

  at::Tensor tensor_;
  std::shared_ptr<const InFile> in_file_;            // instead of tensor_
  std::shared_ptr<const HostCopies::Copy> on_host_;  // …
  at::Device device_ = at::kCPU;                     // where it belongs
  int64_t version_ = -1;                             // of the caller's own tensor; -1: tensor_ is a copy
  std::shared_ptr<void> release_;                    // gives the slot back
};

class ActivationStore {
 public:
  explicit ActivationStore(const ActivationStoreOptions& options) : options_(options) {}

  // `input`: its number among the inputs of its checkpoint; those of one number share a buffer. ErrorKind::kConfig when
  // all slots are taken.
  KeptTensor keep(size_t input, const at::Tensor& tensor);

  CheckpointCosts& costs() { return costs_; }
  CheckpointCosts take_costs() { return std::exchange(costs_, {}); }

  // The store of this thread's innermost scope; never null.
  static const std::shared_ptr<ActivationStore>& current();

  class Scope {
   public:
    explicit Scope(std::shared_ptr<ActivationStore> store);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<ActivationStore> previous_;
  };

 private:
  struct Buffer;
  struct Slot {
    at::Tensor bytes;
    std::shared_ptr<void> release;
  };
  Slot take_slot(size_t input, at::Device device, int64_t size_bytes);

  ActivationStoreOptions options_;
  std::map<size_t, std::shared_ptr<Buffer>> buffers_;  // by number of the input
  CheckpointCosts costs_;
};

}  // namespace tessera::nn
