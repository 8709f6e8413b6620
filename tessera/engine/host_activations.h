// The inputs of activation checkpoints of a model on a device, in the host's memory: they leave beside the forward
// pass, and come back as backward asks for them. In pinned memory, as far as its limit allows. One thread at a time.
#pragma once

#include <memory>

#include "tessera/nn/activation_store.h"
#include "tessera/storage/host_link.h"

namespace tessera::engine {

class HostActivations : public nn::HostCopies {
 public:
  explicit HostActivations(std::shared_ptr<storage::HostLink> link) : link_(std::move(link)) {}

  std::shared_ptr<Copy> keep(const at::Tensor& tensor) override;

 private:
  std::shared_ptr<storage::HostLink> link_;
};

}  // namespace tessera::engine
