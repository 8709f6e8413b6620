#include "tessera/comm/two_level_exchange.h"

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/comm/escorts.h"
#include "tessera/comm/ordered_sum.h"

namespace tessera::comm {
namespace {

using PendingPtr = Exchange::PendingPtr;
using SharedPending = std::shared_ptr<Exchange::Pending>;
using TimePoint = Exchange::TimePoint;
using std::chrono::steady_clock;

// What an exchange and its operations in flight share.
struct Levels {
  std::unique_ptr<Exchange> within, between;
  int rank, size, ranks_a_host;
  std::chrono::milliseconds timeout;

  int hosts() const { return size / ranks_a_host; }
  int host() const { return rank / ranks_a_host; }
  int place() const { return rank % ranks_a_host; }
  bool is_here(int other) const { return other / ranks_a_host == host(); }
  int counterpart(int host) const { return host * ranks_a_host + place(); }  // the rank of this place

  // Other hosts; each begins with another.
  template <class Visit>
  void each_other_host(const Visit& visit) const {
    for (int step = 1; step < hosts(); ++step) visit((host() + step) % hosts());
  }

  // The part of `full` that belongs to a host's ranks.
  at::Tensor block(const at::Tensor& full, int host) const {
    const int64_t numel = full.numel() / hosts();
    return full.narrow(0, host * numel, numel);
  }
};

// The collective of one host within a collective of all.
uint64_t tag_of_host(uint64_t tag, int host) { return tag + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(host) + 1); }

// Everything is under way from the start.
class AllAtOnce final : public Exchange::Pending {
 public:
  explicit AllAtOnce(std::shared_ptr<const Levels> levels) : levels_(std::move(levels)) {}

  void wait(TimePoint deadline) override {
    for (const PendingPtr& each : between) each->wait(deadline);
    for (const PendingPtr& each : within) each->wait(deadline);
  }

  std::vector<PendingPtr> between, within;

 private:
  std::shared_ptr<const Levels> levels_;
};

class TwoLevelExchange final : public Exchange {
 public:
  explicit TwoLevelExchange(std::shared_ptr<const Levels> levels) : levels_(std::move(levels)) {}

  // In two levels where these ranks are as many on each of their hosts, at the same places and host by host; within a
  // host where they are all on one; else by messages alone.
  std::unique_ptr<Exchange> among(const std::vector<int>& ranks) const override {
    const auto place_of = [this](int rank) { return rank % levels_->ranks_a_host; };
    const int first_host = ranks.front() / levels_->ranks_a_host;
    std::vector<int> places;  // on the first host
    for (const int rank : ranks) {
      if (rank / levels_->ranks_a_host != first_host) break;
      places.push_back(place_of(rank));
    }
    if (places.size() == ranks.size() && levels_->is_here(ranks.front())) return levels_->within->among(places);
    bool regular = places.size() > 1 && ranks.size() % places.size() == 0;
    std::set<int> hosts;
    for (size_t index = 0; regular && index < ranks.size(); ++index) {
      const int host = ranks[index] / levels_->ranks_a_host;
      if (index % places.size() == 0) regular = hosts.insert(host).second;
      regular = regular && host == ranks[index - index % places.size()] / levels_->ranks_a_host &&
                place_of(ranks[index]) == places[index % places.size()];
    }
    if (!regular) return levels_->between->among(ranks);
    const auto own = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
    return make_two_level_exchange(
        levels_->within->among(places), levels_->between->among(ranks),
        {.rank = own, .size = static_cast<int>(ranks.size()), .ranks_a_host = static_cast<int>(places.size())},
        levels_->timeout);
  }

  // Each host's part comes to the counterpart first, and goes on from there to the others of this host.
  PendingPtr all_gather(const at::Tensor& full, const at::Tensor& shard, uint64_t tag) override {
    const int64_t numel = shard.numel();
    const auto part_of = [full, numel](int rank) { return full.narrow(0, rank * numel, numel); };
    const at::Tensor own = part_of(rank());
    if (own.data_ptr() != shard.data_ptr()) own.copy_(shard);
    struct Arrival {
      int host;
      SharedPending pending;
    };
    std::vector<Arrival> arrivals;
    std::vector<SharedPending> sends;
    levels_->each_other_host([&](int host) {
      const int peer = levels_->counterpart(host);
      arrivals.push_back({host, levels_->between->receive(part_of(peer), peer, tag)});
      sends.push_back(levels_->between->send(own, peer, tag));
    });
    const auto gather_within = [levels = levels_, full, part_of, tag](int host) -> SharedPending {
      return levels->within->all_gather(levels->block(full, host), part_of(levels->counterpart(host)),
                                        tag_of_host(tag, host));
    };
    std::vector<SharedPending> gathers{gather_within(levels_->host())};
    return lead([arrivals, sends, gathers, gather_within](TimePoint deadline) mutable {
      for (const Arrival& arrival : arrivals) {
        arrival.pending->wait(deadline);
        gathers.push_back(gather_within(arrival.host));
      }
      for (const SharedPending& each : sends) each->wait(deadline);
      for (const SharedPending& each : gathers) each->wait(deadline);
    });
  }

  // Each host's ranks add up their parts for every rank; the sums of one rank meet there. `bucket_numel` bounds
  // nothing: two sums of each host in fp32 are all that needs memory.
  PendingPtr reduce_scatter(const at::Tensor& shard, const at::Tensor& full, double scale, uint64_t tag,
                            int64_t /*bucket_numel*/) override {
    const int64_t numel = shard.numel();
    const int hosts = levels_->hosts(), own_host = levels_->host();
    const auto options = shard.options().dtype(at::toOpMathType(shard.scalar_type()));
    const at::Tensor sums = levels_->within->empty(hosts * numel, options);
    const auto sum_for = [sums, numel](int host) { return sums.narrow(0, host * numel, numel); };
    std::vector<SharedPending> adding(static_cast<size_t>(hosts));
    const auto add = [&](int host) {
      adding[static_cast<size_t>(host)] = levels_->within->reduce_scatter(
          sum_for(host), levels_->block(full, host), /*scale=*/1, tag_of_host(tag, host), full.numel());
    };
    levels_->each_other_host(add);
    add(own_host);
    return lead([levels = levels_, shard, scale, tag, sum_for, adding, hosts, own_host](TimePoint deadline) {
      std::vector<at::Tensor> parts(static_cast<size_t>(hosts));
      parts[static_cast<size_t>(own_host)] = sum_for(own_host);
      std::vector<PendingPtr> messages;
      levels->each_other_host([&](int host) {
        const int peer = levels->counterpart(host);
        at::Tensor& part = parts[static_cast<size_t>(host)] = at::empty_like(sum_for(host));
        messages.push_back(levels->between->receive(part, peer, tag));
        adding[static_cast<size_t>(host)]->wait(deadline);
        messages.push_back(levels->between->send(sum_for(host), peer, tag));
      });
      adding[static_cast<size_t>(own_host)]->wait(deadline);
      for (const PendingPtr& each : messages) each->wait(deadline);
      at::Tensor out = shard;
      ordered_sum(parts, scale, out);
    });
  }

  PendingPtr all_to_all(const std::vector<at::Tensor>& incoming, const std::vector<at::Tensor>& outgoing,
                        uint64_t tag) override {
    const auto split = [this](const std::vector<at::Tensor>& all, bool here) {
      std::vector<at::Tensor> some;
      for (int peer = 0; peer < levels_->size; ++peer) {
        const at::Tensor& tensor = all[static_cast<size_t>(peer)];
        if (levels_->is_here(peer) == here) {
          some.push_back(tensor);
        } else if (!here) {
          some.push_back(tensor.narrow(0, 0, 0));  // which is not sent
        }
      }
      return some;
    };
    auto pending = std::make_unique<AllAtOnce>(levels_);
    pending->between.push_back(levels_->between->all_to_all(split(incoming, false), split(outgoing, false), tag));
    pending->within.push_back(levels_->within->all_to_all(split(incoming, true), split(outgoing, true), tag));
    return pending;
  }

  // To one rank of each host, and from there to the others.
  PendingPtr broadcast(const at::Tensor& buffer, int root, uint64_t tag) override {
    const int root_place = root % levels_->ranks_a_host;
    if (levels_->place() == root_place && !levels_->is_here(root)) {
      const SharedPending arrival = levels_->between->receive(buffer, root, tag);
      return lead([levels = levels_, arrival, buffer, root_place, tag](TimePoint deadline) {
        arrival->wait(deadline);
        const PendingPtr spreading = levels->within->broadcast(buffer, root_place, tag);
        spreading->wait(deadline);
      });
    }
    auto pending = std::make_unique<AllAtOnce>(levels_);
    if (rank() == root) {
      levels_->each_other_host([&](int host) {
        pending->between.push_back(levels_->between->send(buffer, levels_->counterpart(host), tag));
      });
    }
    pending->within.push_back(levels_->within->broadcast(buffer, root_place, tag));
    return pending;
  }

  PendingPtr send(const at::Tensor& buffer, int to, uint64_t tag) override {
    return one_way(to, [&](Exchange& exchange, int peer) { return exchange.send(buffer, peer, tag); });
  }

  PendingPtr receive(const at::Tensor& buffer, int from, uint64_t tag) override {
    return one_way(from, [&](Exchange& exchange, int peer) { return exchange.receive(buffer, peer, tag); });
  }

  at::Tensor empty(int64_t numel, const at::TensorOptions& options) override {
    return levels_->within->empty(numel, options);
  }

  int64_t bytes_sent() const override { return levels_->within->bytes_sent() + levels_->between->bytes_sent(); }

 private:
  int rank() const { return levels_->rank; }

  // start(exchange, peer's number there), on the level that reaches the peer.
  template <class Start>
  PendingPtr one_way(int peer, const Start& start) {
    auto pending = std::make_unique<AllAtOnce>(levels_);
    if (levels_->is_here(peer)) {
      pending->within.push_back(start(*levels_->within, peer % levels_->ranks_a_host));
    } else {
      pending->between.push_back(start(*levels_->between, peer));
    }
    return pending;
  }

  PendingPtr lead(std::function<void(TimePoint)> rest) {
    return escorts_.lead([rest = std::move(rest), deadline = steady_clock::now() + levels_->timeout] {
      const at::NoGradGuard no_grad;
      rest(deadline);
    });
  }

  std::shared_ptr<const Levels> levels_;
  Escorts escorts_;
};

}  // namespace

std::unique_ptr<Exchange> make_two_level_exchange(std::unique_ptr<Exchange> within, std::unique_ptr<Exchange> between,
                                                  const PlaceOfRank& place, std::chrono::milliseconds timeout) {
  TESSERA_INVARIANT(place.size % place.ranks_a_host == 0);
  return std::make_unique<TwoLevelExchange>(std::make_shared<const Levels>(
      Levels{std::move(within), std::move(between), place.rank, place.size, place.ranks_a_host, timeout}));
}

}  // namespace tessera::comm
