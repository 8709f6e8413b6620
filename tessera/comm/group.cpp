#include "tessera/comm/communicator.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/hash.h"
#include "tessera/base/trace.h"
#include "tessera/comm/connection.h"
#include "tessera/comm/ordered_sum.h"
#include "tessera/comm/store_texts.h"

namespace tessera::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

std::string message_name(const std::string& label, int from, int to) {
  return fmt::format("message '{}' from rank {} to rank {}", label, from, to);
}

}  // namespace

void Collective::finish() { finish_until(Until::kOver); }

void Collective::take_result() { finish_until(Until::kResult); }

void Collective::finish_until(Until until) {
  TESSERA_INVARIANT(finish_ != nullptr);
  const Finish finish = std::move(finish_);
  finish_ = nullptr;
  finish(until);
}

Communicator::Communicator(const World& world, std::shared_ptr<Connection> connection)
    : world_(world), connection_(std::move(connection)) {}

Communicator::Communicator(Communicator& parent, const std::string& channel)
    : world_(parent.world_),
      connection_(parent.connection_),
      channel_(fmt::format("{}/{}{}", parent.channel_, channel, parent.channels_++)) {}

Communicator::~Communicator() = default;

std::shared_ptr<Communicator> Communicator::alone() { return std::make_shared<Communicator>(World{}, nullptr); }

std::shared_ptr<Communicator> Communicator::with_channel(const std::string& name) {
  return std::shared_ptr<Communicator>(new Communicator(*this, name));
}

std::shared_ptr<Communicator> Communicator::for_another_thread(const std::string& name) {
  auto channel = with_channel(name);
  if (connection_) channel->own_store_ = std::make_shared<OwnStore>(OwnStore{connection_->store->clone()});
  return channel;
}

// Every rank counts its collectives, so the same tag means the same collective of the same thing in the same turn.
uint64_t Communicator::next_tag(const std::string& operation) {
  return fnv1a(fmt::format("{}#{}#{}", channel_, turn_++, operation));
}

struct Communicator::Move {
  std::string operation;  // for errors: "all-gather of 'layers.3'"
  TraceLane lane;
  size_t bytes;  // of the whole
};

template <class Start>
Collective Communicator::start(const Move& move, const Start& start_exchange) {
  const auto begin = steady_clock::now();
  std::shared_ptr<Exchange::Pending> pending;
  try {
    const TraceSpan span(TraceLane::kCompute, move.operation);
    pending = start_exchange(*connection_->exchange);
  } catch (const PeerFailure& failure) {
    explain(failure, move.operation);
  }
  return Collective([this, pending, move, begin](Collective::Until until) {
    wait(move.operation, [&](Exchange::TimePoint deadline) {
      until == Collective::Until::kOver ? pending->wait(deadline) : pending->wait_for_result(deadline);
    });
    if (tracing()) trace({move.lane, move.operation, begin, steady_clock::now(), static_cast<int64_t>(move.bytes)});
  });
}

template <class Wait>
void Communicator::wait(const std::string& operation, const Wait& wait_until) {
  const TraceSpan span(TraceLane::kCompute, "wait:", operation);
  connection_->board.begin(operation);
  try {
    wait_until(steady_clock::now() + connection_->timeout);
  } catch (const PeerFailure& failure) {
    explain(failure, operation);
  }
  connection_->board.end();
}

void Communicator::settle() {
  if (!connection_) return;
  wait("release of lent memory", [&](Exchange::TimePoint deadline) { connection_->exchange->settle(deadline); });
}

void Communicator::explain(const PeerFailure& failure, const std::string& operation) const {
  const std::string where = fmt::format("rank {}", world_.rank);
  if (!failure.late()) {
    throw Error(ErrorKind::kPeer,
                {fmt::format("rank {} went away during the {}: {}", failure.peer(), operation, failure.what()), where,
                 "look at the end of that rank's output"});
  }
  const std::string others = connection_->board.describe_others();
  throw Error(ErrorKind::kPeer,
              {fmt::format("rank {} did not join the {} within {}{}", failure.peer(), operation,
                           format_duration(connection_->timeout), others.empty() ? "" : "; " + others),
               where, "every rank must run the same units; for slow ranks raise TESSERA_TIMEOUT (seconds)"});
}

at::Tensor Communicator::empty(int64_t numel, const at::TensorOptions& options) const {
  if (!connection_) return at::empty({numel}, options);
  return connection_->exchange->empty(numel, options);
}

Collective Communicator::start_all_gather(at::Tensor full, at::Tensor slice, const std::string& label) {
  const int64_t numel = slice.numel();
  TESSERA_INVARIANT(full.numel() == numel * world_.size);
  if (!connection_ || numel == 0) {
    if (numel > 0 && full.data_ptr() != slice.data_ptr()) full.copy_(slice);
    return Collective([](Collective::Until) {});
  }
  const Move move{fmt::format("all-gather of '{}'", label), TraceLane::kGather, full.nbytes()};
  return start(move, [&](Exchange& exchange) { return exchange.all_gather(full, slice, next_tag(move.operation)); });
}

Collective Communicator::start_reduce_scatter(at::Tensor slice, at::Tensor full, double scale, const std::string& label,
                                              int64_t bucket_numel) {
  TESSERA_INVARIANT(full.numel() == slice.numel() * world_.size);
  if (slice.numel() == 0) return Collective([](Collective::Until) {});
  if (!connection_)
    return Collective([full, slice, scale](Collective::Until) mutable { ordered_sum({full}, scale, slice); });
  const Move move{fmt::format("reduce-scatter of '{}'", label), TraceLane::kReduce, full.nbytes()};
  return start(move, [&](Exchange& exchange) {
    return exchange.reduce_scatter(slice, full, scale, next_tag(move.operation), bucket_numel);
  });
}

Collective Communicator::start_all_reduce(at::Tensor buffer, double scale, const std::string& label,
                                          int64_t bucket_numel) {
  const int64_t numel = buffer.numel();
  if (!connection_) {
    return Collective([buffer, scale](Collective::Until) mutable { ordered_sum({buffer}, scale, buffer); });
  }
  if (Exchange::reduces_in_slices(numel, world_.size)) {
    const int64_t slice_numel = numel / world_.size;
    const at::Tensor slice = buffer.narrow(0, world_.rank * slice_numel, slice_numel);
    auto reducing = std::make_shared<Collective>(start_reduce_scatter(slice, buffer, scale, label, bucket_numel));
    return Collective([this, reducing, buffer, slice, label](Collective::Until) {
      reducing->finish();
      start_all_gather(buffer, slice, label).finish();
    });
  }
  auto all = at::empty({world_.size * numel}, buffer.options());
  auto gathering = std::make_shared<Collective>(start_all_gather(all, buffer.view({numel}), label));
  return Collective([this, gathering, all, buffer, scale](Collective::Until) mutable {
    gathering->finish();
    ordered_sum(all.chunk(world_.size), scale, buffer);
  });
}

Collective Communicator::start_all_to_all(std::vector<at::Tensor> incoming, std::vector<at::Tensor> outgoing,
                                          const std::string& label) {
  TESSERA_INVARIANT(static_cast<int>(incoming.size()) == world_.size && incoming.size() == outgoing.size());
  incoming[world_.rank].copy_(outgoing[world_.rank]);
  if (!connection_) return Collective([](Collective::Until) {});
  Move move{fmt::format("exchange of '{}'", label), TraceLane::kExchange, 0};
  for (const at::Tensor& each : outgoing) move.bytes += each.nbytes();
  return start(move,
               [&](Exchange& exchange) { return exchange.all_to_all(incoming, outgoing, next_tag(move.operation)); });
}

int64_t Communicator::bytes_sent() const { return connection_ ? connection_->exchange->bytes_sent() : 0; }

Collective Communicator::start_broadcast(at::Tensor buffer, int root, const std::string& label) {
  if (!connection_) return Collective([](Collective::Until) {});
  const Move move{fmt::format("broadcast of '{}' from rank {}", label, root), TraceLane::kExchange, buffer.nbytes()};
  return start(move, [&](Exchange& exchange) { return exchange.broadcast(buffer, root, next_tag(move.operation)); });
}

// A message between two ranks is no turn of the others, so its tag counts no turns: messages of one label between one
// pair arrive in the order in which they were sent.
Collective Communicator::start_send(at::Tensor buffer, int to, const std::string& label) {
  TESSERA_INVARIANT(connection_ != nullptr && to != world_.rank);
  const Move move{message_name(label, world_.rank, to), TraceLane::kExchange, buffer.nbytes()};
  return start(move, [&](Exchange& exchange) { return exchange.send(buffer, to, fnv1a(channel_ + move.operation)); });
}

Collective Communicator::start_receive(at::Tensor buffer, int from, const std::string& label) {
  TESSERA_INVARIANT(connection_ != nullptr && from != world_.rank);
  const Move move{message_name(label, from, world_.rank), TraceLane::kExchange, buffer.nbytes()};
  return start(move,
               [&](Exchange& exchange) { return exchange.receive(buffer, from, fnv1a(channel_ + move.operation)); });
}

// False once the timeout has passed. cancel() ends it, which the store's own wait cannot offer.
bool Communicator::look_until(const std::vector<std::string>& keys) const {
  const auto deadline = steady_clock::now() + connection_->timeout;
  milliseconds pause(1);
  while (!own_store_->store->check(keys)) {
    if (cancelled_) {
      throw Error(ErrorKind::kPeer, {"gave up because this rank is exiting", fmt::format("rank {}", world_.rank), ""});
    }
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, milliseconds(10));
  }
  return true;
}

// keys[r]: what rank r should have set.
void Communicator::explain_missing(const std::vector<std::string>& keys, const std::string& label) const {
  std::vector<size_t> missing;
  try {
    c10d::Store& store = own_store_ ? *own_store_->store : *connection_->store;
    for (size_t rank = 0; rank < keys.size(); ++rank) {
      if (!store.check({keys[rank]})) missing.push_back(rank);
    }
  } catch (const std::exception&) {  // the store is gone, so rank 0 is
    throw Error(ErrorKind::kPeer, {fmt::format("rank 0 went away during '{}'", label),
                                   fmt::format("rank {}", world_.rank), "look at the end of that rank's output"});
  }
  throw Error(ErrorKind::kPeer, {fmt::format("rank {} did not reach '{}' within {}", fmt::join(missing, ", rank "),
                                             label, format_duration(connection_->timeout)),
                                 fmt::format("rank {}", world_.rank), "look at that rank's output"});
}

std::vector<std::string> Communicator::exchange_texts(const std::string& text, const std::string& label) {
  if (!connection_) return {text};
  // The last reader of a turn could delete its keys; a run has few of them, so they stay until the store closes.
  const std::string name = fmt::format("exchange/{}/{}/{}", channel_, store_turn_++, label);
  c10d::Store& store = own_store_ ? *own_store_->store : *connection_->store;
  try {
    return comm::exchange_texts(store, name, world_.rank, world_.size, text, [&](const Keys& keys) {
      if (!own_store_) store.wait(keys, connection_->timeout);
      if (own_store_ && !look_until(keys)) explain_missing(keys, label);
    });
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    explain_missing(keys_of_all(name, world_.size), label);
  }
}

void Communicator::barrier(const std::string& label) { exchange_texts("", label); }

}  // namespace tessera::comm
