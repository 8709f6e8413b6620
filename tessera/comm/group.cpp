#include "tessera/comm/group.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/hash.h"
#include "tessera/base/trace.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/connection.h"
#include "tessera/comm/current_stream.h"
#include "tessera/comm/exchange.h"
#include "tessera/comm/ordered_sum.h"
#include "tessera/comm/store/bounded_store.h"
#include "tessera/comm/store/store_texts.h"

namespace tessera::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

std::string message_name(const std::string& label, int from, int to) {
  return fmt::format("message '{}' from rank {} to rank {}", label, from, to);
}

// Keeps `exchange`, which counts for both.
std::shared_ptr<Exchange> channel_of(const std::shared_ptr<Exchange>& exchange) {
  const std::shared_ptr<Exchange> own = exchange->channel();
  if (!own) return exchange;
  const auto both = std::make_shared<std::pair<std::shared_ptr<Exchange>, std::shared_ptr<Exchange>>>(exchange, own);
  return {both, own.get()};
}

c10::OptionalStreamGuard queueing_on(const c10::Stream* stream) {
  return stream == nullptr ? c10::OptionalStreamGuard() : c10::OptionalStreamGuard(*stream);
}

}  // namespace

void Collective::finish() { finish_until({}); }

void Collective::take_result() { finish_until({.result_alone = true}); }

// What a host transport and sums made here queue goes to the current stream.
void Collective::wait_on(const c10::Stream& stream) {
  finish_until({.stream = &stream});
  if (stream.device_type() == at::kCPU) return;
  const c10::Stream current = current_stream(stream.device());
  if (current == stream) return;
  c10::Event queued(stream.device_type());
  queued.record(current);
  queued.block(stream);
}

void Collective::take_for(const at::Tensor& result) {
  result.is_cpu() ? take_result() : wait_on(current_stream(result.device()));
}

void Collective::finish_for(const at::Tensor& result) {
  result.is_cpu() ? finish() : wait_on(current_stream(result.device()));
}

void Collective::finish_until(const Until& until) {
  TESSERA_INVARIANT(finish_ != nullptr);
  const Finish finish = std::move(finish_);
  finish_ = nullptr;
  finish(until);
}

Group::Group(const World& world, std::shared_ptr<Connection> connection, std::shared_ptr<Exchange> exchange)
    : rank_(world.rank),
      local_rank_(world.local_rank),
      local_size_(world.local_size),
      members_(static_cast<size_t>(world.size)),
      connection_(std::move(connection)),
      exchange_(std::move(exchange)),
      count_(connection_ ? connection_->new_count("", exchange_) : nullptr) {
  std::iota(members_.begin(), members_.end(), 0);
}

Group::Group(Group& parent, const std::string& channel)
    : rank_(parent.rank_),
      local_rank_(parent.local_rank_),
      local_size_(parent.local_size_),
      members_(parent.members_),
      name_(parent.name_),
      place_(parent.place_),
      connection_(parent.connection_),
      exchange_(parent.exchange_ ? channel_of(parent.exchange_) : nullptr),
      count_(parent.count_),
      channel_(fmt::format("{}/{}{}", parent.channel_, channel, parent.channels_++)) {}

Group::Group(Group& parent, std::vector<int> members, int rank, std::string name, std::string place)
    : rank_(rank),
      local_rank_(parent.local_rank_),
      local_size_(parent.local_size_),
      members_(std::move(members)),
      name_(std::move(name)),
      place_(std::move(place)) {
  const std::string called = fmt::format("{}/{}[{}]", parent.channel_, name_, fmt::join(members_, " "));
  channel_ = fmt::format("{}{}", called, parent.subgroups_[called]++);
}

Group::~Group() = default;

std::shared_ptr<Group> Group::alone() { return std::make_shared<Group>(World{}, nullptr, nullptr); }

void Group::name_places(std::vector<std::string> places) {
  if (connection_) connection_->board.name_places(std::move(places));
}

std::shared_ptr<Group> Group::with_channel(const std::string& name) {
  return std::shared_ptr<Group>(new Group(*this, name));
}

std::shared_ptr<Group> Group::subgroup(const std::vector<int>& ranks, const std::string& name,
                                       const std::string& place) {
  std::vector<int> members;
  std::optional<int> own;
  for (const int rank : ranks) {
    TESSERA_INVARIANT(rank >= 0 && rank < size());
    if (rank == rank_) own = static_cast<int>(members.size());
    members.push_back(member(rank));
  }
  TESSERA_INVARIANT(own.has_value());
  std::shared_ptr<Group> group(new Group(*this, std::move(members), *own, name, place));
  if (group->size() > 1) {
    group->connection_ = connection_;
    group->exchange_ = exchange_->among(ranks);
    group->count_ = connection_->new_count(name, group->exchange_);
  }
  return group;
}

std::shared_ptr<Group> Group::for_another_thread(const std::string& name) {
  auto channel = with_channel(name);
  if (connection_) channel->own_store_ = std::make_shared<OwnStore>(OwnStore{connection_->store->clone()});
  return channel;
}

// "rank 5 (pp 1, dp_shard 0, tp 1)"
std::string Group::where() const {
  return fmt::format("rank {}{}", member(rank_), place_.empty() ? "" : " (" + place_ + ")");
}

// "all-gather of 'layers.3' in group dp_shard"; only where somebody reads it.
std::string Group::traced(const std::string& operation) const { return tracing() ? operation + of_group() : ""; }

std::string Group::of_group() const { return name_.empty() ? "" : fmt::format(" in group {}", name_); }

// Every rank counts its collectives, so the same tag means the same collective of the same thing, with the same
// sequence number.
uint64_t Group::next_tag(const std::string& operation) {
  return fnv1a(fmt::format("{}#{}#{}", channel_, sequence_number_++, operation));
}

struct Group::Move {
  std::string operation;  // for errors: "all-gather of 'layers.3'"
  TraceLane lane;
  size_t bytes;                 // of the whole
  const char* kind;             // for the log of collectives
  size_t message_bytes;         // for it as well
  bool is_between_two = false;  // it has no sequence number
};

template <class Start>
Collective Group::start(const Move& move, const Start& start_exchange) {
  const auto begin = steady_clock::now();
  const Awaited awaited{.operation = move.operation,
                        .group = name_,
                        .channel = channel_,
                        .number = move.is_between_two ? -1 : sequence_number_};
  std::shared_ptr<Exchange::Pending> pending;
  try {
    const TraceSpan span(TraceLane::kCompute, traced(move.operation));
    pending = start_exchange(*exchange_);
  } catch (const PeerFailure& failure) {
    explain(failure, move.operation);
  }
  return Collective([this, pending, move, awaited, begin](const Collective::Until& until) {
    const WaitBoard::Waiting waiting(connection_->board, awaited);
    wait(move.operation, [&](Exchange::TimePoint deadline) {
      if (until.stream != nullptr) return pending->wait_on(*until.stream, deadline);
      until.result_alone ? pending->wait_for_result(deadline) : pending->wait(deadline);
    });
    const auto end = steady_clock::now();
    if (tracing()) trace({move.lane, traced(move.operation), begin, end, static_cast<int64_t>(move.bytes)});
    if (logs_collectives()) {
      log_collective({.operation = move.kind,
                      .bytes = static_cast<int64_t>(move.message_bytes),
                      .ranks = move.is_between_two ? 2 : size(),
                      .time = end - begin});
    }
  });
}

template <class Wait>
void Group::wait(const std::string& operation, const Wait& wait_until) {
  const TraceSpan span(TraceLane::kCompute, "wait:", traced(operation));
  try {
    const auto now = steady_clock::now();
    wait_until(connection_->failure.get() ? now : now + connection_->timeout);
    count_->waited_ns += std::chrono::nanoseconds(steady_clock::now() - now).count();
  } catch (const PeerFailure& failure) {
    explain(failure, operation);
  }
}

void Group::settle() {
  if (!connection_) return;
  const char* const operation = "release of lent memory";
  const WaitBoard::Waiting waiting(connection_->board, {.operation = operation, .group = name_, .channel = channel_});
  wait(operation, [&](Exchange::TimePoint deadline) { exchange_->settle(deadline); });
}

void Group::explain(const PeerFailure& failure, const std::string& operation) const {
  if (const auto first = connection_->failure.get()) throw *first;
  connection_->failure.raise(explained(failure, operation));
}

Error Group::explained(const PeerFailure& failure, const std::string& operation) const {
  WaitBoard& board = connection_->board;
  if (failure.peer() < 0 && !failure.late()) {
    return Error(ErrorKind::kPeer, {fmt::format("the {}{} failed: {}", operation, of_group(), failure.what()), where(),
                                    "look at the end of the other ranks' output; NCCL_DEBUG=WARN makes NCCL say more"});
  }
  const std::string peer = failure.peer() < 0 ? "" : ranks_in_words({failure.peer()}, board.places());
  if (!failure.late() && !board.hang_noticed()) {
    return Error(ErrorKind::kPeer,
                 {fmt::format("{} went away during the {}{}: {}", peer, operation, of_group(), failure.what()), where(),
                  "look at the end of that rank's output"});
  }
  const std::string within = format_duration(connection_->timeout);
  const std::string missed =
      failure.peer() < 0
          ? fmt::format("the {}{} did not end within {}, though all ranks have begun it", operation, of_group(), within)
      : failure.late() ? fmt::format("{} did not join the {}{} within {}", peer, operation, of_group(), within)
                       : fmt::format("{} gave up during the {}{}", peer, operation, of_group());
  return Error(
      ErrorKind::kPeer,
      {fmt::format("{}; {}", missed, board.report_hang(missed)), where(),
       "every rank has to call forward, backward, step and save_checkpoint as often as the others; for slow ranks "
       "raise TESSERA_TIMEOUT (seconds)"});
}

at::Tensor Group::empty(int64_t numel, const at::TensorOptions& options) const {
  if (!connection_) return at::empty({numel}, options);
  return exchange_->empty(numel, options);
}

Collective Group::start_all_gather(at::Tensor full, at::Tensor shard, const std::string& label) {
  const int64_t numel = shard.numel();
  TESSERA_INVARIANT(full.numel() == numel * size());
  if (!connection_ || numel == 0) {
    if (numel > 0 && full.data_ptr() != shard.data_ptr()) full.copy_(shard);
    return Collective([](const Collective::Until&) {});
  }
  const Move move{fmt::format("all-gather of '{}'", label), TraceLane::kGather, full.nbytes(), "all_gather_into_tensor",
                  shard.nbytes()};
  return start(move, [&](Exchange& exchange) { return exchange.all_gather(full, shard, next_tag(move.operation)); });
}

Collective Group::start_reduce_scatter(at::Tensor shard, at::Tensor full, double scale, const std::string& label,
                                       int64_t bucket_numel) {
  TESSERA_INVARIANT(full.numel() == shard.numel() * size());
  if (shard.numel() == 0) return Collective([](const Collective::Until&) {});
  if (!connection_)
    return Collective([full, shard, scale](const Collective::Until&) mutable { ordered_sum({full}, scale, shard); });
  const Move move{fmt::format("reduce-scatter of '{}'", label), TraceLane::kReduce, full.nbytes(),
                  "reduce_scatter_tensor", shard.nbytes()};
  return start(move, [&](Exchange& exchange) {
    return exchange.reduce_scatter(shard, full, scale, next_tag(move.operation), bucket_numel);
  });
}

bool Group::connects(c10::Device device) {
  if (!connection_) return true;
  try {
    return exchange_->connects(device);
  } catch (const PeerFailure& failure) {
    explain(failure, "connection of devices");
  }
}

bool Group::all_reduces_in_one(const at::Tensor& buffer, const std::string& operation) {
  try {
    return exchange_->all_reduces(buffer);
  } catch (const PeerFailure& failure) {
    explain(failure, operation);
  }
}

Collective Group::start_all_reduce(at::Tensor buffer, double scale, const std::string& label, int64_t bucket_numel) {
  const int64_t numel = buffer.numel();
  if (!connection_) {
    return Collective([buffer, scale](const Collective::Until&) mutable { ordered_sum({buffer}, scale, buffer); });
  }
  const Move move{fmt::format("all-reduce of '{}'", label), TraceLane::kReduce, buffer.nbytes(), "all_reduce",
                  buffer.nbytes()};
  if (all_reduces_in_one(buffer, move.operation)) {
    return start(move,
                 [&](Exchange& exchange) { return exchange.all_reduce(buffer, scale, next_tag(move.operation)); });
  }
  if (Exchange::reduces_in_shards(numel, size())) {
    const int64_t shard_numel = numel / size();
    const at::Tensor shard = buffer.narrow(0, rank_ * shard_numel, shard_numel);
    auto reducing = std::make_shared<Collective>(start_reduce_scatter(shard, buffer, scale, label, bucket_numel));
    return Collective([this, reducing, buffer, shard, label](const Collective::Until& until) {
      const c10::OptionalStreamGuard on_stream = queueing_on(until.stream);
      reducing->finish_until(until.whole());
      start_all_gather(buffer, shard, label).finish_until(until.whole());
    });
  }
  auto all = at::empty({size() * numel}, buffer.options());
  auto gathering = std::make_shared<Collective>(start_all_gather(all, buffer.view({numel}), label));
  return Collective([this, gathering, all, buffer, scale](const Collective::Until& until) mutable {
    const c10::OptionalStreamGuard on_stream = queueing_on(until.stream);
    gathering->finish_until(until.whole());
    ordered_sum(all.chunk(size()), scale, buffer);
  });
}

Collective Group::start_all_to_all(std::vector<at::Tensor> incoming, std::vector<at::Tensor> outgoing,
                                   const std::string& label) {
  TESSERA_INVARIANT(static_cast<int>(incoming.size()) == size() && incoming.size() == outgoing.size());
  incoming[rank_].copy_(outgoing[rank_]);
  if (!connection_) return Collective([](const Collective::Until&) {});
  Move move{fmt::format("exchange of '{}'", label), TraceLane::kExchange, 0, "all_to_all", 0};
  for (const at::Tensor& each : outgoing) move.bytes += each.nbytes();
  move.message_bytes = move.bytes;
  return start(move,
               [&](Exchange& exchange) { return exchange.all_to_all(incoming, outgoing, next_tag(move.operation)); });
}

std::shared_ptr<Group::Count> Group::Connection::new_count(const std::string& name,
                                                           const std::shared_ptr<Exchange>& exchange) {
  const auto count = std::make_shared<Count>();
  count->name = name;
  count->exchange = exchange;
  const std::lock_guard lock(counts_mutex);
  std::erase_if(counts, [](const auto& each) { return each.expired(); });
  counts.push_back(count);
  return count;
}

std::vector<GroupUse> Group::Connection::uses() {
  std::map<std::string, GroupUse> by_name;
  const std::lock_guard lock(counts_mutex);
  for (const auto& each : counts) {
    const auto count = each.lock();
    const auto exchange = count ? count->exchange.lock() : nullptr;
    if (!exchange) continue;
    GroupUse& use = by_name[count->name];
    use.bytes_sent += exchange->bytes_sent();
    use.waited += std::chrono::duration<double>(std::chrono::nanoseconds(count->waited_ns)).count();
  }
  std::vector<GroupUse> uses;
  for (auto& [name, use] : by_name) uses.push_back({name, use.bytes_sent, use.waited});
  return uses;
}

std::vector<GroupUse> Group::uses() const { return connection_ ? connection_->uses() : std::vector<GroupUse>(); }

int64_t Group::bytes_sent() const { return connection_ ? exchange_->bytes_sent() : 0; }

Collective Group::start_broadcast(at::Tensor buffer, int root, const std::string& label) {
  if (!connection_) return Collective([](const Collective::Until&) {});
  const Move move{fmt::format("broadcast of '{}' from rank {}", label, member(root)), TraceLane::kExchange,
                  buffer.nbytes(), "broadcast", buffer.nbytes()};
  return start(move, [&](Exchange& exchange) { return exchange.broadcast(buffer, root, next_tag(move.operation)); });
}

// A message between two ranks does not concern the others, so its tag has no sequence number: messages of one label
// between one pair arrive in the order in which they were sent.
Collective Group::start_send(at::Tensor buffer, int to, const std::string& label) {
  TESSERA_INVARIANT(connection_ != nullptr && to != rank_);
  const Move move{message_name(label, member(rank_), member(to)),
                  TraceLane::kExchange,
                  buffer.nbytes(),
                  "send",
                  buffer.nbytes(),
                  /*is_between_two=*/true};
  return start(move, [&](Exchange& exchange) { return exchange.send(buffer, to, fnv1a(channel_ + move.operation)); });
}

Collective Group::start_receive(at::Tensor buffer, int from, const std::string& label) {
  TESSERA_INVARIANT(connection_ != nullptr && from != rank_);
  const Move move{message_name(label, member(from), member(rank_)),
                  TraceLane::kExchange,
                  buffer.nbytes(),
                  "recv",
                  buffer.nbytes(),
                  /*is_between_two=*/true};
  return start(move,
               [&](Exchange& exchange) { return exchange.receive(buffer, from, fnv1a(channel_ + move.operation)); });
}

// False once the timeout has passed. cancel() ends it, which the store's own wait cannot offer.
bool Group::look_until(const std::vector<std::string>& keys) const {
  const auto deadline = steady_clock::now() + connection_->timeout;
  milliseconds pause(1);
  while (!own_store_->store->check(keys)) {
    if (cancelled_) {
      throw Error(ErrorKind::kPeer, {"gave up because this rank is exiting", where(), ""});
    }
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, milliseconds(10));
  }
  return true;
}

// keys[r]: what rank r should have set. Asks over the board's connection, as that which waited may be left behind.
void Group::explain_missing(const std::vector<std::string>& keys, const std::string& label) const {
  const auto found = missing_ranks(connection_->board.store(), keys);
  if (!found) {  // the store is gone, so the world's rank 0 is
    throw Error(ErrorKind::kPeer, {fmt::format("rank 0 went away during '{}'{}", label, of_group()), where(),
                                   "look at the end of that rank's output"});
  }
  std::vector<int> missing;
  for (const int rank : *found) missing.push_back(member(rank));
  const std::string missed =
      fmt::format("{} did not reach '{}'{} within {}", ranks_in_words(missing, connection_->board.places()), label,
                  of_group(), format_duration(connection_->timeout));
  throw Error(ErrorKind::kPeer, {fmt::format("{}; {}", missed, connection_->board.report_hang(missed)), where(),
                                 "look at that rank's output"});
}

std::vector<std::string> Group::exchange_texts(const std::string& text, const std::string& label) {
  if (!connection_) return {text};
  const WaitBoard::Waiting waiting(connection_->board, {.operation = fmt::format("exchange of '{}'", label),
                                                        .group = name_,
                                                        .channel = channel_ + "/texts",
                                                        .number = text_number_});
  const std::string name = fmt::format("exchange/{}/{}/{}", channel_, text_number_++, label);
  const std::string before = std::exchange(last_texts_, name);
  c10d::Store& store = own_store_ ? *own_store_->store : *connection_->store;
  const auto wait = [&](const Keys& keys) {
    if (!own_store_) store.wait(keys, connection_->timeout);
    if (own_store_ && !look_until(keys)) explain_missing(keys, label);
  };
  try {
    return comm::exchange_texts(store, name, rank_, size(), text, wait, before);
  } catch (const SilentStore&) {  // LibTorch's client may hang when it gives a wait up, though the store is well
    explain_missing(keys_of_all(name, size()), label);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    explain_missing(keys_of_all(name, size()), label);
  }
}

void Group::barrier(const std::string& label) { exchange_texts("", label); }

}  // namespace tessera::comm
