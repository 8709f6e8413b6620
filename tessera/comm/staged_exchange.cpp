#include "tessera/comm/staged_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

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
  StagedExchange(std::unique_ptr<Exchange> host, int rank) : host_(std::move(host)), rank_(rank) {}

  std::unique_ptr<Exchange> among(const std::vector<int>& ranks) const override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return std::make_unique<StagedExchange>(host_->among(ranks), static_cast<int>(own));
  }

  PendingPtr all_gather(const at::Tensor& full, const at::Tensor& shard, uint64_t tag) override {
    if (full.is_cpu() && shard.is_cpu()) return host_->all_gather(full, shard, tag);
    const at::Tensor all = room_for(full);
    const at::Tensor own = all.narrow(0, rank_ * shard.numel(), shard.numel());
    copy(shard.view({-1}), own);
    return arriving(host_->all_gather(all, own, tag), {{full, all}});
  }

  PendingPtr reduce_scatter(const at::Tensor& shard, const at::Tensor& full, double scale, uint64_t tag,
                            int64_t bucket_numel) override {
    if (full.is_cpu() && shard.is_cpu()) return host_->reduce_scatter(shard, full, scale, tag, bucket_numel);
    const at::Tensor all = copied(full);
    const at::Tensor own = shard.scalar_type() == full.scalar_type()
                               ? all.narrow(0, rank_ * shard.numel(), shard.numel())
                               : room_for(shard);
    return arriving(host_->reduce_scatter(own, all, scale, tag, bucket_numel), {{shard, own}});
  }

  PendingPtr all_to_all(const std::vector<at::Tensor>& incoming, const std::vector<at::Tensor>& outgoing,
                        uint64_t tag) override {
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

  void settle(TimePoint deadline) override { host_->settle(deadline); }

  at::Tensor empty(int64_t numel, const at::TensorOptions& options) override {
    return options.device().is_cpu() ? host_->empty(numel, options) : at::empty({numel}, options);
  }

  int64_t bytes_sent() const override { return host_->bytes_sent(); }

 private:
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

  std::unique_ptr<Exchange> host_;
  int rank_;
};

}  // namespace

std::unique_ptr<Exchange> make_staged_exchange(std::unique_ptr<Exchange> of_host_memory, int rank) {
  return std::make_unique<StagedExchange>(std::move(of_host_memory), rank);
}

}  // namespace tessera::comm
