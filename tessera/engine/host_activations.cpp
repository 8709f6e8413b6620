#include "tessera/engine/host_activations.h"

#include <ATen/ops/empty_strided.h>

#include <utility>

#include "tessera/comm/current_stream.h"

namespace tessera::engine {
namespace {

constexpr const char* kLabel = "an activation checkpoint";

// The elements in the order in which they lie in memory.
at::Tensor flat(const at::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}); }

class KeptOnHost final : public nn::HostCopies::Copy {
 public:
  KeptOnHost(std::shared_ptr<storage::HostLink> link, const at::Tensor& tensor)
      : link_(std::move(link)),
        like_(tensor.options()),
        sizes_(tensor.sizes().vec()),
        strides_(tensor.strides().vec()),
        host_(link_->memory().empty(tensor.numel(), tensor.scalar_type())),
        leaving_(link_->start_to_host(host_, flat(tensor), kLabel)) {}

  at::Tensor restore() const override {
    const at::Tensor tensor = at::empty_strided(sizes_, strides_, like_);
    storage::HostLink::Copy(leaving_).wait_on(link_->to_device());
    link_->start_to_device(flat(tensor), host_, kLabel).wait_on(comm::current_stream(tensor.device()));
    return tensor;
  }

 private:
  std::shared_ptr<storage::HostLink> link_;
  at::TensorOptions like_;
  std::vector<int64_t> sizes_, strides_;
  at::Tensor host_;
  storage::HostLink::Copy leaving_;
};

}  // namespace

std::shared_ptr<nn::HostCopies::Copy> HostActivations::keep(const at::Tensor& tensor) {
  return std::make_shared<KeptOnHost>(link_, tensor);
}

}  // namespace tessera::engine
