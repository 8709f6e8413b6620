#include "tessera/comm/nccl/nccl_exchange.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/nccl/communicator.h"
#include "tessera/comm/ordered_sum.h"

namespace tessera::comm::nccl {
namespace {

using PendingPtr = Exchange::PendingPtr;

// What is only moved is moved as bytes, whatever it is.
constexpr DataType kByte = DataType::kInt8;

DataType summed_as(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return DataType::kFloat16;
    case at::kBFloat16:
      return DataType::kBfloat16;
    case at::kDouble:
      return DataType::kFloat64;
    default:
      TESSERA_INVARIANT(dtype == at::kFloat);
      return DataType::kFloat32;
  }
}

size_t count_of(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

// scale * sum, as one of NCCL's reductions. `take` launches what is summed so.
template <class Take>
void with_scaled_sum(Communicator::Calls& calls, at::ScalarType dtype, double scale, const Take& take) {
  if (scale == 1) return take(kSum);
  const at::Tensor scalar = at::empty({}, dtype).fill_(scale);
  Reduction reduction = kSum;
  calls.call("ncclRedOpCreatePreMulSum", [&](const Library& nccl, CommHandle comm, void*) {
    return nccl.red_op_create_pre_mul_sum(&reduction, scalar.data_ptr(), summed_as(dtype), kScalarOnHost, comm);
  });
  take(reduction);
  calls.call("ncclRedOpDestroy",
             [&](const Library& nccl, CommHandle comm, void*) { return nccl.red_op_destroy(reduction, comm); });
}

void send_in_group(Communicator::Calls& calls, const at::Tensor& buffer, int to) {
  calls.in_group("ncclSend", [&](const Library& nccl, CommHandle comm, void* stream) {
    return nccl.send(buffer.data_ptr(), buffer.nbytes(), kByte, to, comm, stream);
  });
}

void receive_in_group(Communicator::Calls& calls, const at::Tensor& buffer, int from) {
  calls.in_group("ncclRecv", [&](const Library& nccl, CommHandle comm, void* stream) {
    return nccl.receive(buffer.data_ptr(), buffer.nbytes(), kByte, from, comm, stream);
  });
}

// Of one reduce-scatter whose sums are made here.
struct OrderedReduction {
  at::Tensor shard, full;
  double scale;
  int64_t piece_numel;
  int rank, size;

  void launch(Communicator::Calls& calls) const {
    for (int64_t offset = 0; offset < shard.numel(); offset += piece_numel) {
      launch_piece(calls, offset, std::min(piece_numel, shard.numel() - offset));
    }
  }

 private:
  // What arrives is allocated and added on the communicator's stream, so one piece's memory may be the next one's.
  void launch_piece(Communicator::Calls& calls, int64_t offset, int64_t numel) const {
    const auto part = [&](int of) { return full.narrow(0, of * shard.numel() + offset, numel); };
    std::vector<at::Tensor> parts;
    for (int peer = 0; peer < size; ++peer) {
      parts.push_back(peer == rank ? part(rank) : at::empty({numel}, full.options()));
    }
    calls.group([&] {
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        send_in_group(calls, part(peer), peer);
        receive_in_group(calls, parts[static_cast<size_t>(peer)], peer);
      }
    });
    at::Tensor sum = shard.narrow(0, offset, numel);
    ordered_sum(parts, scale, sum);
  }
};

class NcclExchange final : public Exchange {
 public:
  NcclExchange(std::shared_ptr<Run> run, NcclPlace place, std::shared_ptr<std::atomic<int64_t>> sent)
      : run_(std::move(run)), place_(std::move(place)), sent_(std::move(sent)) {}

  PendingPtr all_gather(const at::Tensor& full, const at::Tensor& shard, uint64_t tag) override {
    count(shard.nbytes() * others());
    return all_ranks(full, tag).start([full, shard](Communicator::Calls& calls) {
      calls.call("ncclAllGather", [&](const Library& nccl, CommHandle comm, void* stream) {
        return nccl.all_gather(shard.data_ptr(), full.data_ptr(), shard.nbytes(), kByte, comm, stream);
      });
    });
  }

  PendingPtr reduce_scatter(const at::Tensor& shard, const at::Tensor& full, double scale, uint64_t tag,
                            int64_t bucket_numel) override {
    count(count_of(shard) * full.element_size() * others());
    if (place_.sums_in_rank_order || shard.scalar_type() != full.scalar_type()) {
      const int64_t piece = std::clamp<int64_t>(bucket_numel / size(), 1, shard.numel());
      const OrderedReduction reduction{shard.view({-1}), full.view({-1}), scale, piece, place_.rank, size()};
      return all_ranks(full, tag).start([reduction](Communicator::Calls& calls) { reduction.launch(calls); });
    }
    return all_ranks(full, tag).start([shard, full, scale](Communicator::Calls& calls) {
      const at::ScalarType dtype = full.scalar_type();
      with_scaled_sum(calls, dtype, scale, [&](Reduction sum) {
        calls.call("ncclReduceScatter", [&](const Library& nccl, CommHandle comm, void* stream) {
          return nccl.reduce_scatter(full.data_ptr(), shard.data_ptr(), count_of(shard), summed_as(dtype), sum, comm,
                                     stream);
        });
      });
    });
  }

  bool all_reduces(const at::Tensor& /*buffer*/) override { return !place_.sums_in_rank_order; }

  PendingPtr all_reduce(const at::Tensor& buffer, double scale, uint64_t tag) override {
    count(2 * buffer.nbytes() * others() / static_cast<size_t>(size()));
    return all_ranks(buffer, tag).start([buffer, scale](Communicator::Calls& calls) {
      const at::ScalarType dtype = buffer.scalar_type();
      with_scaled_sum(calls, dtype, scale, [&](Reduction sum) {
        calls.call("ncclAllReduce", [&](const Library& nccl, CommHandle comm, void* stream) {
          void* const data = buffer.data_ptr();
          return nccl.all_reduce(data, data, count_of(buffer), summed_as(dtype), sum, comm, stream);
        });
      });
    });
  }

  PendingPtr all_to_all(const std::vector<at::Tensor>& incoming, const std::vector<at::Tensor>& outgoing,
                        uint64_t tag) override {
    const int own = place_.rank;
    for (int peer = 0; peer < size(); ++peer) count(peer == own ? 0 : outgoing[static_cast<size_t>(peer)].nbytes());
    return all_ranks(incoming[static_cast<size_t>(own)], tag).start([incoming, outgoing, own](auto& calls) {
      calls.group([&] {
        for (int peer = 0; peer < static_cast<int>(incoming.size()); ++peer) {
          const auto index = static_cast<size_t>(peer);
          if (peer == own) continue;
          if (outgoing[index].numel() > 0) send_in_group(calls, outgoing[index], peer);
          if (incoming[index].numel() > 0) receive_in_group(calls, incoming[index], peer);
        }
      });
    });
  }

  PendingPtr broadcast(const at::Tensor& buffer, int root, uint64_t tag) override {
    count(place_.rank == root ? buffer.nbytes() * others() : 0);
    return all_ranks(buffer, tag).start([buffer, root](Communicator::Calls& calls) {
      calls.call("ncclBroadcast", [&](const Library& nccl, CommHandle comm, void* stream) {
        return nccl.broadcast(buffer.data_ptr(), buffer.data_ptr(), buffer.nbytes(), kByte, root, comm, stream);
      });
    });
  }

  PendingPtr send(const at::Tensor& buffer, int to, uint64_t tag) override {
    count(buffer.nbytes());
    return from_to(place_.rank, to, buffer, tag).start([buffer](Communicator::Calls& calls) {
      calls.group([&] { send_in_group(calls, buffer, 1); });
    });
  }

  PendingPtr receive(const at::Tensor& buffer, int from, uint64_t tag) override {
    return from_to(from, place_.rank, buffer, tag).start([buffer](Communicator::Calls& calls) {
      calls.group([&] { receive_in_group(calls, buffer, 0); });
    });
  }

  std::unique_ptr<Exchange> among(const std::vector<int>& ranks) const override {
    NcclPlace place = place_;
    place.members.clear();
    for (const int rank : ranks) place.members.push_back(member(rank));
    place.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), place_.rank) - ranks.begin());
    return make_nccl_exchange(run_, std::move(place), std::make_shared<std::atomic<int64_t>>(0));
  }

  std::unique_ptr<Exchange> channel() const override { return make_nccl_exchange(run_, place_, sent_); }

  int64_t bytes_sent() const override { return *sent_; }

 private:
  int size() const { return static_cast<int>(place_.members.size()); }
  size_t others() const { return place_.members.size() - 1; }
  int member(int rank) const { return place_.members[static_cast<size_t>(rank)]; }
  void count(size_t bytes) { *sent_ += static_cast<int64_t>(bytes); }

  Communicator& all_ranks(const at::Tensor& tensor, uint64_t tag) {
    const std::lock_guard lock(mutex_);
    if (!all_ranks_) {
      all_ranks_ = std::make_unique<Communicator>(
          run_, Communicator::Place{.members = place_.members,
                                    .rank = place_.rank,
                                    .device = tensor.device(),
                                    .key = fmt::format("nccl/{}/{:x}", fmt::join(place_.members, " "), tag)});
    }
    TESSERA_INVARIANT(all_ranks_->device() == tensor.device());
    return *all_ranks_;
  }

  // Of two ranks, for messages one way: a send that waits for its receive must not hold up what comes back.
  Communicator& from_to(int from, int to, const at::Tensor& buffer, uint64_t tag) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Communicator>& found = messages_[{from, to}];
    if (!found) {
      found = std::make_unique<Communicator>(
          run_, Communicator::Place{.members = {member(from), member(to)},
                                    .rank = place_.rank == from ? 0 : 1,
                                    .device = buffer.device(),
                                    .key = fmt::format("nccl/{} to {}/{:x}", member(from), member(to), tag)});
    }
    return *found;
  }

  std::shared_ptr<Run> run_;
  NcclPlace place_;
  std::shared_ptr<std::atomic<int64_t>> sent_;
  std::mutex mutex_;
  std::unique_ptr<Communicator> all_ranks_;
  std::map<std::pair<int, int>, std::unique_ptr<Communicator>> messages_;
};

}  // namespace

std::unique_ptr<Exchange> make_nccl_exchange(std::shared_ptr<Run> run, NcclPlace place,
                                             std::shared_ptr<std::atomic<int64_t>> bytes_sent) {
  return std::make_unique<NcclExchange>(std::move(run), std::move(place), std::move(bytes_sent));
}

}  // namespace tessera::comm::nccl
