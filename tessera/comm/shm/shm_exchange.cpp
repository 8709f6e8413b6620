#include "tessera/comm/shm/shm_exchange.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <list>
#include <mutex>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/host_memory.h"
#include "tessera/comm/ordered_sum.h"
#include "tessera/comm/shm/peer_links.h"
#include "tessera/comm/shm/transfer.h"
#include "tessera/comm/store/store_texts.h"

namespace tessera::comm::shm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{50};  // a waiting rank sees this often whether its peers are still there
constexpr microseconds kSpin{50};
constexpr int64_t kCopyGrain = 1 << 20;  // bytes that a thread copies at least

std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  at::parallel_for(0, static_cast<int64_t>(bytes), kCopyGrain,
                   [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, end - begin); });
}

// A collective in flight: what it lends, what it borrows, and what becomes of that.
class Operation {
 public:
  virtual ~Operation() = default;

  bool advance(Host& host) {
    bool moved = false;
    for (Lending& lending : lendings_) moved |= lending.advance(host);
    while (receive(host)) moved = true;
    return moved;
  }

  // All that is borrowed has come.
  bool has_result() const {
    return std::all_of(borrowings_.begin(), borrowings_.end(), [](const Borrowing& each) { return each.is_over(); });
  }

  // … and all that is lent has been read.
  bool is_over() const {
    return has_result() &&
           std::all_of(lendings_.begin(), lendings_.end(), [](const Lending& each) { return each.is_over(); });
  }

  // A rank without which it cannot go on; any, if it is over.
  int awaited() const {
    for (const Borrowing& each : borrowings_) {
      if (!each.is_over()) return each.peer();
    }
    for (const Lending& each : lendings_) {
      if (each.awaited() != 0) return std::countr_zero(each.awaited());
    }
    return 0;
  }

 protected:
  // One step; false when nothing more is there.
  virtual bool receive(Host& host) = 0;

  std::vector<Lending> lendings_;
  std::vector<Borrowing> borrowings_;
};

// Takes what each peer lends as it comes.
class Copying final : public Operation {
 public:
  void lend(const at::Tensor& source, uint64_t readers, uint64_t tag) {
    if (source.numel() > 0 && readers != 0) lendings_.emplace_back(source, readers, source.nbytes(), tag);
  }

  void borrow(const at::Tensor& to, int peer, uint64_t tag) {
    if (to.numel() == 0) return;
    borrowings_.emplace_back(peer, /*part=*/0, to.nbytes(), tag);
    targets_.push_back(to);
  }

 private:
  bool receive(Host& host) override {
    for (size_t index = 0; index < borrowings_.size(); ++index) {
      Borrowing& from = borrowings_[index];
      const size_t bytes = from.available(host);
      if (bytes == 0) continue;
      copy_bytes(data_of(targets_[index]) + from.done(), from.data(host), bytes);
      from.consume(host, bytes);
      return true;
    }
    return false;
  }

  std::vector<at::Tensor> targets_;  // of each borrowing
};

// The ranks of a host that an exchange is among, and which of them this one is.
struct Members {
  std::vector<int> ranks;
  int own = 0;  // index

  int size() const { return static_cast<int>(ranks.size()); }
  uint64_t bit(int index) const { return uint64_t{1} << ranks[static_cast<size_t>(index)]; }
  uint64_t others() const {
    uint64_t bits = 0;
    for (int index = 0; index < size(); ++index) bits |= index == own ? 0 : bit(index);
    return bits;
  }
};

// shard = scale * ordered sum of everybody's part for this rank.
class Summing final : public Operation {
 public:
  Summing(const Members& members, at::Tensor shard, const at::Tensor& full, double scale, uint64_t tag)
      : shard_(std::move(shard)),
        own_(full.narrow(0, members.own * shard_.numel(), shard_.numel())),
        before_own_(members.own),
        scale_(scale) {
    const size_t bytes = own_.nbytes();
    lendings_.emplace_back(full, members.others(), bytes, bytes, tag, members.ranks);
    for (int index = 0; index < members.size(); ++index) {
      if (index != members.own) borrowings_.emplace_back(members.ranks[index], /*part=*/members.own, bytes, tag);
    }
  }

 private:
  // As far as all have lent: pieces of all staged parts are of one size, and a part in place has no pieces.
  bool receive(Host& host) override {
    size_t bytes = own_.nbytes() - borrowings_.front().done();
    for (Borrowing& each : borrowings_) bytes = std::min(bytes, each.available(host));
    if (bytes == 0) return false;
    const auto element_size = static_cast<int64_t>(own_.element_size());
    const int64_t begin = static_cast<int64_t>(borrowings_.front().done()) / element_size;
    const int64_t numel = static_cast<int64_t>(bytes) / element_size;
    std::vector<at::Tensor> parts;
    for (const Borrowing& each : borrowings_) {
      parts.push_back(at::from_blob(const_cast<std::byte*>(each.data(host)), {numel}, own_.options()));
    }
    parts.insert(parts.begin() + before_own_, own_.narrow(0, begin, numel));
    at::Tensor out = shard_.narrow(0, begin, numel);
    ordered_sum(parts, scale_, out);
    for (Borrowing& each : borrowings_) each.consume(host, bytes);
    return true;
  }

  at::Tensor shard_;
  at::Tensor own_;
  int before_own_;  // members
  double scale_;
};

// What exchanges of one host and everything pending on them share. `first`: the host's rank 0 in the world, whose ranks
// are numbered host by host.
class Progress {
 public:
  Progress(int first, int rank, std::shared_ptr<Heap> heap, std::vector<std::optional<Segment>> peers, PeerLinks links)
      : first_(first), host_(rank, std::move(heap), std::move(peers)), links_(std::move(links)) {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) >= host_.size()) spin_ = kSpin;
  }

  Host& host() { return host_; }

  void start(const std::shared_ptr<Operation>& operation) {
    const std::lock_guard lock(mutex_);
    operations_.push_back(operation);
    move_on();
  }

  // Until operation.is_over(), or has_result().
  void wait(const Operation& operation, bool (Operation::*is_enough)() const, Exchange::TimePoint deadline) {
    const auto is_there = [&] {
      const std::lock_guard lock(mutex_);
      move_on();
      return (operation.*is_enough)();
    };
    auto next_look = steady_clock::now() + kLook;
    while (true) {
      const uint32_t rings = host_.own().rings();
      if (is_there()) return;
      host_.own().wait(rings, spin_, kLook);
      const auto now = steady_clock::now();
      if (now < next_look) continue;
      next_look = now + kLook;
      const int peer = awaited(operation);
      // What a peer posted before it ended still counts, so first it is seen to be gone, and then there is nothing.
      const bool gone = is_gone(peer);
      if (is_there()) return;
      if (gone && awaited(operation) == peer) throw PeerFailure(first_ + peer, /*late=*/false, "its process has ended");
      if (now >= deadline) throw PeerFailure(first_ + peer, /*late=*/true, "timeout");
    }
  }

  // Until nothing is lent any more of operations whose results are there.
  void settle(Exchange::TimePoint deadline) {
    while (const auto lending = any_lending()) wait(*lending, &Operation::is_over, deadline);
  }

 private:
  std::shared_ptr<Operation> any_lending() {
    const std::lock_guard lock(mutex_);
    for (const auto& operation : operations_) {
      if (operation->has_result() && !operation->is_over()) return operation;
    }
    return nullptr;
  }

  bool is_gone(int peer) {
    const std::lock_guard lock(mutex_);
    return links_.is_gone(peer);
  }

  int awaited(const Operation& operation) {
    const std::lock_guard lock(mutex_);
    return operation.awaited();
  }

  void move_on() {
    bool moved = true;
    while (moved) {
      host_.look_around();
      moved = false;
      for (const auto& operation : operations_) moved |= operation->advance(host_);
      operations_.remove_if([](const auto& operation) { return operation->is_over(); });
    }
  }

  std::mutex mutex_;
  int first_;
  Host host_;
  PeerLinks links_;
  std::list<std::shared_ptr<Operation>> operations_;  // in the order of their start; given up ones as well
  microseconds spin_{0};
};

class ShmExchange final : public Exchange {
 public:
  ShmExchange(std::shared_ptr<Progress> progress, std::vector<int> ranks)
      : progress_(std::move(progress)), members_{.ranks = std::move(ranks)} {
    members_.own = static_cast<int>(std::find(members_.ranks.begin(), members_.ranks.end(), host().rank()) -
                                    members_.ranks.begin());
  }

  std::unique_ptr<Exchange> among(const std::vector<int>& ranks) const override {
    std::vector<int> chosen;
    for (const int rank : ranks) chosen.push_back(members_.ranks[static_cast<size_t>(rank)]);
    return std::make_unique<ShmExchange>(progress_, std::move(chosen));
  }

  PendingPtr all_gather(const at::Tensor& full, const at::Tensor& shard, uint64_t tag) override {
    const int64_t numel = shard.numel();
    const at::Tensor own = full.narrow(0, members_.own * numel, numel);
    if (own.data_ptr() != shard.data_ptr()) copy_bytes(data_of(own), data_of(shard), shard.nbytes());
    auto operation = std::make_shared<Copying>();
    operation->lend(shard, members_.others(), tag);
    each_other([&](int index, int peer) { operation->borrow(full.narrow(0, index * numel, numel), peer, tag); });
    bytes_sent_ += static_cast<int64_t>(shard.nbytes()) * (members_.size() - 1);
    return start(std::move(operation));
  }

  PendingPtr reduce_scatter(const at::Tensor& shard, const at::Tensor& full, double scale, uint64_t tag,
                            int64_t /*bucket_numel: nothing arrives in memory*/) override {
    bytes_sent_ += static_cast<int64_t>(full.nbytes()) / members_.size() * (members_.size() - 1);
    return start(std::make_shared<Summing>(members_, shard, full, scale, tag));
  }

  PendingPtr all_to_all(const std::vector<at::Tensor>& incoming, const std::vector<at::Tensor>& outgoing,
                        uint64_t tag) override {
    auto operation = std::make_shared<Copying>();
    each_other([&](int index, int peer) {
      operation->lend(outgoing[index], members_.bit(index), tag);
      operation->borrow(incoming[index], peer, tag);
      bytes_sent_ += static_cast<int64_t>(outgoing[index].nbytes());
    });
    return start(std::move(operation));
  }

  PendingPtr broadcast(const at::Tensor& buffer, int root, uint64_t tag) override {
    if (members_.own != root) return receive(buffer, root, tag);
    return lend_to(buffer, members_.others(), tag);
  }

  PendingPtr send(const at::Tensor& buffer, int to, uint64_t tag) override {
    return lend_to(buffer, members_.bit(to), tag);
  }

  PendingPtr receive(const at::Tensor& buffer, int from, uint64_t tag) override {
    auto operation = std::make_shared<Copying>();
    operation->borrow(buffer, members_.ranks[static_cast<size_t>(from)], tag);
    return start(std::move(operation));
  }

  void settle(TimePoint deadline) override { progress_->settle(deadline); }

  at::Tensor empty(int64_t numel, const at::TensorOptions& options) override {
    at::Tensor tensor = at::empty({0}, options);
    const size_t bytes = static_cast<size_t>(numel) * tensor.element_size();
    return tensor.set_(c10::Storage(c10::Storage::use_byte_size_t(), bytes, host().heap().allocate(bytes)), 0, {numel});
  }

 private:
  class Waiting final : public Pending {
   public:
    Waiting(std::shared_ptr<Progress> progress, std::shared_ptr<Operation> operation)
        : progress_(std::move(progress)), operation_(std::move(operation)) {}
    void wait(TimePoint deadline) override { progress_->wait(*operation_, &Operation::is_over, deadline); }
    void wait_for_result(TimePoint deadline) override {
      progress_->wait(*operation_, &Operation::has_result, deadline);
    }

   private:
    std::shared_ptr<Progress> progress_;
    std::shared_ptr<Operation> operation_;
  };

  Host& host() const { return progress_->host(); }

  // visit(index, rank on the host); each rank begins with another.
  template <class Visit>
  void each_other(const Visit& visit) const {
    for (int step = 1; step < members_.size(); ++step) {
      const int index = (members_.own + step) % members_.size();
      visit(index, members_.ranks[static_cast<size_t>(index)]);
    }
  }

  PendingPtr lend_to(const at::Tensor& buffer, uint64_t readers, uint64_t tag) {
    auto operation = std::make_shared<Copying>();
    operation->lend(buffer, readers, tag);
    bytes_sent_ += static_cast<int64_t>(buffer.nbytes()) * std::popcount(readers);
    return start(std::move(operation));
  }

  PendingPtr start(std::shared_ptr<Operation> operation) {
    progress_->start(operation);
    return std::make_unique<Waiting>(progress_, std::move(operation));
  }

  std::shared_ptr<Progress> progress_;
  Members members_;
};

// As much as the host has, or a process may address: it is a bound, not a need.
size_t segment_bytes(int size) {
  constexpr uint64_t kAddresses = uint64_t{32} << 40;  // a quarter of what an x86-64 process may map
  uint64_t bytes = kAddresses / static_cast<uint64_t>(size);
  if (const uint64_t memory = host_memory().limit; memory > 0) bytes = std::min(bytes, memory);
  if (const auto left = left_of_process_limits()) bytes = std::min(bytes, *left / (4 * static_cast<uint64_t>(size)));
  constexpr uint64_t kGranule = uint64_t{2} << 20;
  return static_cast<size_t>(std::max(bytes / kGranule, uint64_t{8}) * kGranule);
}

std::vector<std::string> tell_all(c10d::Store& store, const std::string& step, int rank, int size,
                                  const std::string& text, milliseconds timeout) {
  return exchange_texts_at_start(store,
                                 {"shm/" + step, "did not join its host's shared memory", fmt::format("rank {}", rank)},
                                 rank, size, text, timeout);
}

// What is said where all is well, before it.
constexpr std::string_view kWell = "well ";

std::string first_refusal(const std::vector<std::string>& texts) {
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].starts_with(kWell)) return fmt::format("rank {}: {}", rank, texts[rank]);
  }
  return "";
}

}  // namespace

std::vector<std::string> hosts_of_ranks(c10d::Store& store, int rank, int size, milliseconds timeout) {
  return tell_all(store, "host", rank, size, host_identity(), timeout);
}

std::unique_ptr<Exchange> join(c10d::Store& store, int rank, int size, milliseconds timeout, Refusal& refusal) {
  const auto hosts = hosts_of_ranks(store, rank, size, timeout);
  const auto elsewhere = std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return host != hosts[0]; });
  if (elsewhere != hosts.end()) {
    refusal = {fmt::format("ranks 0 and {} are not on the same host", elsewhere - hosts.begin()), /*expected=*/true};
    return nullptr;
  }
  return join_host(store, /*first=*/0, rank, size, timeout, refusal);
}

std::unique_ptr<Exchange> join_host(c10d::Store& store, int first, int rank, int size, milliseconds timeout,
                                    Refusal& refusal) {
  if (size > kMaxRanks) {
    refusal = {fmt::format("{} ranks are more than the {} that can share memory", size, kMaxRanks), /*expected=*/true};
    return nullptr;
  }
  // What one rank cannot do, none does: each step is told to all before the next begins.
  std::string said;
  const auto attempt = [&](const char* step, const auto& act) {
    try {
      said = std::string(kWell) + act();
    } catch (const Error& error) {
      said = error.report().what;
    }
    auto texts = tell_all(store, step, rank, size, said, timeout);
    refusal.reason = first_refusal(texts);
    return texts;
  };
  std::optional<PeerLinks> links;
  std::shared_ptr<Heap> heap;
  auto names = attempt("socket", [&] {
    heap = Heap::make(Segment::create(segment_bytes(size)), Mailbox::bytes());
    if (!heap->segment().reserve(0, Mailbox::bytes())) {
      throw Error(ErrorKind::kMachine, {"there is no room in shared memory", "this host", ""});
    }
    links.emplace(rank);
    return links->name();
  });
  if (!refusal.reason.empty()) return nullptr;
  std::shared_ptr<Progress> progress;
  attempt("mapped", [&] {
    for (std::string& name : names) name.erase(0, kWell.size());
    auto files = links->exchange_files(names, heap->segment().file(), Deadline(timeout, "the ranks of this host"));
    std::vector<std::optional<Segment>> peers(static_cast<size_t>(size));
    for (size_t peer = 0; peer < peers.size(); ++peer) {
      if (files[peer].open()) peers[peer].emplace(std::move(files[peer]));
    }
    progress = std::make_shared<Progress>(first, rank, heap, std::move(peers), std::move(*links));
    return std::string();
  });
  if (!refusal.reason.empty()) return nullptr;
  std::vector<int> everybody(static_cast<size_t>(size));
  std::iota(everybody.begin(), everybody.end(), 0);
  return std::make_unique<ShmExchange>(std::move(progress), std::move(everybody));
}

}  // namespace tessera::comm::shm
