#include "tessera/comm/staged_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "tessera/comm/nccl/device_links.h"

namespace tessera::comm {
namespace {

using PendingPtr = Exchange::PendingPtr;
using TimePoint = Exchange::TimePoint;

// What arrives in host memory, and where it goes from there.
struct Arrival {
  at::Tensor to, from;
};

class StagedPending final : public Exchange::Pending {
 public:
  StagedPending(PendingPtr moving, std::vector<Arrival> arrivals)
      : moving_(std::move(moving)), arrivals_(std::move(arrivals)) {}

  void wait(TimePoint deadline) override {
    moving_->wait(deadline);
    take();
  }
  void wait_for_result(TimePoint deadline) override {
    moving_->wait_for_result(deadline);
    take();
  }

 private:
  void take() {
    const at::NoGradGuard no_grad;
    for (const Arrival& arrival : std::exchange(arrivals_, {})) arrival.to.view({-1}).copy_(arrival.from);
  }

  PendingPtr moving_;
  std::vector<Arrival> arrivals_;
};

class StagedExchange final : public Exchange {
 public:
  struct Place {
    int rank;                  // index in `members`
    std::vector<int> members;  // ranks in the world
  };

  StagedExchange(std::shared_ptr<Exchange> host, Place place, std::shared_ptr<nccl::DeviceLinks> links)
      : host_(std::move(host)), rank_(place.rank), members_(std::move(place.members)), links_(std::move(links)) {}

  std::unique_ptr<Exchange> among(const std::vector<int>& ranks) const override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    Place place{.rank = static_cast<int>(own), .members = {}};
    for (const int rank : ranks) place.members.push_back(members_[static_cast<size_t>(rank)]);
    return std::make_unique<StagedExchange>(host_->among(ranks), std::move(place), links_);
  }

  std::unique_ptr<Exchange> channel() const override {
    auto channel = std::make_unique<StagedExchange>(host_, Place{rank_, members_}, links_);
    channel->sent_on_device_ = sent_on_device_;
    return channel;
  }

  PendingPtr all_gather(const at::Tensor& full, const at::Tensor& shard, uint64_t tag) override {
    if (full.is_cpu() && shard.is_cpu()) return host_->all_gather(full, shard, tag);
    if (Exchange* const device = links_of({full, shard})) return device->all_gather(full, shard, tag);
    const at::Tensor all = room_for(full);
    const at::Tensor own = all.narrow(0, rank_ * shard.numel(), shard.numel());
    copy(shard.view({-1}), own);
    return arriving(host_->all_gather(all, own, tag), {{full, all}});
  }

  PendingPtr reduce_scatter(const at::Tensor& shard, const at::Tensor& full, double scale, uint64_t tag,
                            int64_t bucket_numel) override {
    if (full.is_cpu() && shard.is_cpu()) return host_->reduce_scatter(shard, full, scale, tag, bucket_numel);
    if (Exchange* const device = links_of({full, shard})) {
      return device->reduce_scatter(shard, full, scale, tag, bucket_numel);
    }
    const at::Tensor all = copied(full);
    const at::Tensor own = shard.scalar_type() == full.scalar_type()
                               ? all.narrow(0, rank_ * shard.numel(), shard.numel())
                               : room_for(shard);
    return arriving(host_->reduce_scatter(own, all, scale, tag, bucket_numel), {{shard, own}});
  }

  bool all_reduces(const at::Tensor& buffer) override {
    Exchange* const device = links_of({buffer});
    return device != nullptr && device->all_reduces(buffer);
  }

  PendingPtr all_reduce(const at::Tensor& buffer, double scale, uint64_t tag) override {
    return links_of({buffer})->all_reduce(buffer, scale, tag);
  }

  PendingPtr all_to_all(const std::vector<at::Tensor>& incoming, const std::vector<at::Tensor>& outgoing,
                        uint64_t tag) override {
    if (Exchange* const device = links_of(incoming); device != nullptr && links_of(outgoing) == device) {
      return device->all_to_all(incoming, outgoing, tag);
    }
    std::vector<at::Tensor> in, out;
    std::vector<Arrival> arrivals;
    for (size_t peer = 0; peer < incoming.size(); ++peer) {
      const bool moves = static_cast<int>(peer) != rank_;
      in.push_back(incoming[peer].is_cpu() || !moves ? incoming[peer] : room_for(incoming[peer]));
      out.push_back(outgoing[peer].is_cpu() || !moves ? outgoing[peer] : copied(outgoing[peer]));
      if (!in.back().is_same(incoming[peer])) arrivals.push_back({incoming[peer], in.back()});
    }
    return arriving(host_->all_to_all(in, out, tag), std::move(arrivals));
  }

  PendingPtr broadcast(const at::Tensor& buffer, int root, uint64_t tag) override {
    if (buffer.is_cpu()) return host_->broadcast(buffer, root, tag);
    if (Exchange* const device = links_of({buffer})) return device->broadcast(buffer, root, tag);
    if (root == rank_) return host_->broadcast(copied(buffer), root, tag);
    const at::Tensor arrived = room_for(buffer);
    return arriving(host_->broadcast(arrived, root, tag), {{buffer, arrived}});
  }

  PendingPtr send(const at::Tensor& buffer, int to, uint64_t tag) override {
    return host_->send(buffer.is_cpu() ? buffer : copied(buffer), to, tag);
  }

  PendingPtr receive(const at::Tensor& buffer, int from, uint64_t tag) override {
    if (buffer.is_cpu()) return host_->receive(buffer, from, tag);
    const at::Tensor arrived = room_for(buffer);
    return arriving(host_->receive(arrived, from, tag), {{buffer, arrived}});
  }

  bool connects(at::Device device) override { return links_of(device) != nullptr; }

  void settle(TimePoint deadline) override {
    host_->settle(deadline);
    if (links_) links_->require_well();
  }

  at::Tensor empty(int64_t numel, const at::TensorOptions& options) override {
    return options.device().is_cpu() ? host_->empty(numel, options) : at::empty({numel}, options);
  }

  int64_t bytes_sent() const override { return host_->bytes_sent() + *sent_on_device_; }

 private:
  // What connects the devices of these tensors; null: nothing does, or they are not all on one.
  Exchange* links_of(const std::vector<at::Tensor>& tensors) {
    const at::Device device = tensors.front().device();
    const auto is_there = [device](const at::Tensor& tensor) { return tensor.device() == device; };
    return std::all_of(tensors.begin(), tensors.end(), is_there) ? links_of(device) : nullptr;
  }

  Exchange* links_of(at::Device device) {
    if (!links_ || device.is_cpu()) return nullptr;
    const std::lock_guard lock(mutex_);
    if (!has_asked_) device_ = links_->exchange_of(members_, device, sent_on_device_);
    has_asked_ = true;
    return device_.get();
  }

  static void copy(const at::Tensor& from, const at::Tensor& to) {
    const at::NoGradGuard no_grad;
    to.copy_(from);
  }

  static PendingPtr arriving(PendingPtr moving, std::vector<Arrival> arrivals) {
    return std::make_unique<StagedPending>(std::move(moving), std::move(arrivals));
  }

  // Flat host memory of the tensor's numel and dtype.
  at::Tensor room_for(const at::Tensor& tensor) {
    return host_->empty(tensor.numel(), at::TensorOptions(tensor.scalar_type()));
  }
  at::Tensor copied(const at::Tensor& tensor) {
    at::Tensor room = room_for(tensor);
    copy(tensor.view({-1}), room);
    return room;
  }

  std::shared_ptr<Exchange> host_;
  int rank_;
  std::vector<int> members_;
  std::shared_ptr<nccl::DeviceLinks> links_;
  std::shared_ptr<std::atomic<int64_t>> sent_on_device_ = std::make_shared<std::atomic<int64_t>>(0);
  std::mutex mutex_;
  std::unique_ptr<Exchange> device_;
  bool has_asked_ = false;
};

}  // namespace

std::unique_ptr<Exchange> make_staged_exchange(std::unique_ptr<Exchange> of_host_memory, int rank, int size,
                                               std::shared_ptr<nccl::DeviceLinks> links) {
  StagedExchange::Place world{.rank = rank, .members = std::vector<int>(static_cast<size_t>(size))};
  std::iota(world.members.begin(), world.members.end(), 0);
  return std::make_unique<StagedExchange>(std::move(of_host_memory), std::move(world), std::move(links));
}

}  // namespace tessera::comm
