// The inputs of activation checkpoints in a file: written beside the forward pass, read back ahead of the backward
// pass, which wants the last one first. One for each rank; the file has no name (storage/scratch_file.h), so nothing of
// it stays.
//
// Host memory: two tensors on their way to the file, or three on their way back, in buffers that are kept. What goes
// wrong while writing is an error of a later write or read, ErrorKind::kMachine with errno and folder. One thread at a
// time.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tessera/nn/activation_store.h"
#include "tessera/storage/buffer_pool.h"
#include "tessera/storage/io_queue.h"
#include "tessera/storage/scratch_file.h"

namespace tessera::engine {

class NvmeActivations : public nn::ActivationFile {
 public:
  NvmeActivations(const std::string& folder, const storage::IoOptions& io);

  size_t write(const at::Tensor& tensor) override;
  void read(size_t number, const at::Tensor& into) override;
  void forget(size_t number) noexcept override;

 private:
  static constexpr int kMostWriting = 2;
  static constexpr int kMostReading = 3;  // the one that is wanted, and two ahead

  enum class State {
    kWriting,  // in the buffer, and on its way to the file
    kInFile,   // no buffer
    kReading,  // the buffer is being filled
    kRead,     // in the buffer, and in the file
  };
  struct Entry {
    uint64_t offset = 0;  // in the file
    size_t bytes = 0;     // of the tensor; whole pages are moved
    State state = State::kWriting;
    bool forgotten = false;  // goes when its transfer has ended
    storage::AlignedBuffer buffer;
  };
  using Entries = std::map<size_t, Entry>;  // by number, which is the order of writing

  void wait_one();
  void start_reading(Entries::iterator entry);
  void read_ahead(Entries::iterator of);
  void erase(Entries::iterator entry) noexcept;
  void give_back_buffer(Entry& entry) noexcept;

  storage::ScratchFile file_;
  Entries entries_;
  storage::BufferPool buffers_{kMostWriting + kMostReading};
  size_t next_number_ = 0;
  uint64_t end_ = 0;        // of what the file holds; back to the beginning when nothing is left
  int reading_ = 0;         // entries in kReading and kRead
  storage::IoQueue queue_;  // goes first: it waits for the buffers
};

}  // namespace tessera::engine
