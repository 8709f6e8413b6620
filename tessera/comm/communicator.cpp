#include "tessera/comm/communicator.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/hash.h"
#include "tessera/comm/connection.h"
#include "tessera/comm/ordered_sum.h"

namespace tessera::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

// Below this an all-reduce sends everything to everybody: one round instead of two.
constexpr int64_t kSmallNumel = 8192;

// Folded to the 31 bits that a c10d tag may have.
int32_t tag_of(const std::string& text) {
  const uint64_t hash = fnv1a(text);
  return static_cast<int32_t>((hash ^ (hash >> 31)) & 0x7fffffff);
}

// What a backend's exception says, for people: gloo's texts carry its build paths and advice of its own.
std::string reason_of(const std::exception& error) {
  const std::string text = error.what();
  for (const char* const sign : {"closed by peer", "reset by peer", "Broken pipe"}) {
    if (text.find(sign) != std::string::npos) return "its connection closed";
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

// A send or a receive in flight; `work` keeps the tensor alive.
struct Communicator::Message {
  c10::intrusive_ptr<c10d::Work> work;
  int peer;
};

void Collective::finish() {
  TESSERA_INVARIANT(finish_ != nullptr);
  const std::function<void()> finish = std::move(finish_);
  finish_ = nullptr;
  finish();
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
int32_t Communicator::next_tag(const std::string& operation) {
  return tag_of(fmt::format("{}#{}#{}", channel_, turn_++, operation));
}

Communicator::Message Communicator::send(at::Tensor buffer, int to, int32_t tag) const {
  connection_->bytes_sent += buffer.numel() * buffer.element_size();
  std::vector<at::Tensor> tensors{std::move(buffer)};
  try {
    return {connection_->backend->send(tensors, to, tag), to};
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kPeer, {fmt::format("rank {} is gone: {}", to, reason_of(error)),
                                   fmt::format("rank {}", world_.rank), "look at the end of that rank's output"});
  }
}

Communicator::Message Communicator::receive(at::Tensor buffer, int from, int32_t tag) const {
  std::vector<at::Tensor> tensors{std::move(buffer)};
  try {
    return {connection_->backend->recv(tensors, from, tag), from};
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kPeer, {fmt::format("rank {} is gone: {}", from, reason_of(error)),
                                   fmt::format("rank {}", world_.rank), "look at the end of that rank's output"});
  }
}

void Communicator::wait(std::vector<Message>& messages, const std::string& operation) const {
  const auto start = steady_clock::now();
  connection_->board.begin(operation);
  for (Message& message : messages) {
    const auto waited = std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
    const milliseconds left = std::max(milliseconds(1), connection_->timeout - waited);
    try {
      message.work->wait(left);
    } catch (const std::exception& error) {
      const bool late = steady_clock::now() - start >= connection_->timeout;
      explain(message.peer, operation, late, reason_of(error));
    }
  }
  connection_->board.end();
}

void Communicator::explain(int peer, const std::string& operation, bool late, const std::string& reason) const {
  // gloo closes the connections of a wait that expired, so the peer of a late rank is told of a time-out too.
  const bool out_of_time = late || reason.find("timeout") != std::string::npos;
  if (!out_of_time) {
    throw Error(ErrorKind::kPeer, {fmt::format("rank {} went away during the {}: {}", peer, operation, reason),
                                   fmt::format("rank {}", world_.rank), "look at the end of that rank's output"});
  }
  const std::string others = connection_->board.describe_others();
  throw Error(ErrorKind::kPeer,
              {fmt::format("rank {} did not join the {} within {}{}", peer, operation,
                           format_duration(connection_->timeout), others.empty() ? "" : "; " + others),
               fmt::format("rank {}", world_.rank),
               "every rank must run the same units; for slow ranks raise TESSERA_TIMEOUT (seconds)"});
}

Collective Communicator::start_all_gather(at::Tensor full, at::Tensor slice, const std::string& label) {
  const int64_t numel = slice.numel();
  TESSERA_INVARIANT(full.numel() == numel * world_.size);
  const at::Tensor own = full.narrow(0, world_.rank * numel, numel);
  if (own.data_ptr() != slice.data_ptr()) own.copy_(slice);
  if (!connection_ || numel == 0) return Collective([] {});
  const std::string operation = fmt::format("gather of '{}'", label);
  const int32_t tag = next_tag(operation);
  auto messages = std::make_shared<std::vector<Message>>();
  for (int step = 1; step < world_.size; ++step) {
    const int to = (world_.rank + step) % world_.size;
    const int from = (world_.rank - step + world_.size) % world_.size;
    messages->push_back(receive(full.narrow(0, from * numel, numel), from, tag));
    messages->push_back(send(slice, to, tag));
  }
  return Collective([this, messages, operation] { wait(*messages, operation); });
}

Collective Communicator::start_reduce_scatter(at::Tensor slice, at::Tensor full, double scale, const std::string& label,
                                              int64_t bucket_numel) {
  const int64_t numel = slice.numel();
  TESSERA_INVARIANT(full.numel() == numel * world_.size);
  if (numel == 0) return Collective([] {});
  const int64_t piece_numel = std::min(numel, std::max<int64_t>(1, bucket_numel / world_.size));
  auto first = std::make_shared<Collective>(
      start_reduce_piece(slice.narrow(0, 0, piece_numel), full, /*offset=*/0, scale, label));
  return Collective([this, first, slice, full, scale, label, numel, piece_numel] {
    first->finish();
    for (int64_t offset = piece_numel; offset < numel; offset += piece_numel) {
      const int64_t count = std::min(piece_numel, numel - offset);
      start_reduce_piece(slice.narrow(0, offset, count), full, offset, scale, label).finish();
    }
  });
}

// The elements of each rank's slice from `offset` on, as many as `slice_piece` has.
Collective Communicator::start_reduce_piece(at::Tensor slice_piece, const at::Tensor& full, int64_t offset,
                                            double scale, const std::string& label) {
  const int64_t slice_numel = full.numel() / world_.size;
  const auto part = [&](int rank) { return full.narrow(0, rank * slice_numel + offset, slice_piece.numel()); };
  if (!connection_) {
    return Collective([own = part(0), slice_piece, scale]() mutable { ordered_sum({own}, scale, slice_piece); });
  }
  const std::string operation = fmt::format("reduction of '{}'", label);
  const int32_t tag = next_tag(operation);
  auto messages = std::make_shared<std::vector<Message>>();
  std::vector<at::Tensor> parts(world_.size);
  parts[world_.rank] = part(world_.rank);
  for (int step = 1; step < world_.size; ++step) {
    const int to = (world_.rank + step) % world_.size;
    const int from = (world_.rank - step + world_.size) % world_.size;
    parts[from] = at::empty_like(slice_piece);
    messages->push_back(receive(parts[from], from, tag));
    messages->push_back(send(part(to), to, tag));
  }
  return Collective([this, messages, operation, parts, scale, slice_piece]() mutable {
    wait(*messages, operation);
    ordered_sum(parts, scale, slice_piece);
  });
}

Collective Communicator::start_all_reduce(at::Tensor buffer, double scale, const std::string& label,
                                          int64_t bucket_numel) {
  const int64_t numel = buffer.numel();
  if (!connection_) {
    return Collective([buffer, scale]() mutable { ordered_sum({buffer}, scale, buffer); });
  }
  if (numel > kSmallNumel && numel % world_.size == 0) {
    const int64_t slice_numel = numel / world_.size;
    const at::Tensor slice = buffer.narrow(0, world_.rank * slice_numel, slice_numel);
    auto reducing = std::make_shared<Collective>(start_reduce_scatter(slice, buffer, scale, label, bucket_numel));
    return Collective([this, reducing, buffer, slice, label] {
      reducing->finish();
      start_all_gather(buffer, slice, label).finish();
    });
  }
  auto all = at::empty({world_.size * numel}, buffer.options());
  auto gathering = std::make_shared<Collective>(start_all_gather(all, buffer.view({numel}), label));
  return Collective([this, gathering, all, buffer, scale]() mutable {
    gathering->finish();
    ordered_sum(all.chunk(world_.size), scale, buffer);
  });
}

Collective Communicator::start_all_to_all(std::vector<at::Tensor> incoming, std::vector<at::Tensor> outgoing,
                                          const std::string& label) {
  TESSERA_INVARIANT(static_cast<int>(incoming.size()) == world_.size && incoming.size() == outgoing.size());
  incoming[world_.rank].copy_(outgoing[world_.rank]);
  if (!connection_) return Collective([] {});
  const std::string operation = fmt::format("exchange of '{}'", label);
  const int32_t tag = next_tag(operation);
  auto messages = std::make_shared<std::vector<Message>>();
  for (int step = 1; step < world_.size; ++step) {
    const int to = (world_.rank + step) % world_.size;
    const int from = (world_.rank - step + world_.size) % world_.size;
    if (incoming[from].numel() > 0) messages->push_back(receive(incoming[from], from, tag));
    if (outgoing[to].numel() > 0) messages->push_back(send(outgoing[to], to, tag));
  }
  return Collective([this, messages, operation] { wait(*messages, operation); });
}

int64_t Communicator::bytes_sent() const { return connection_ ? connection_->bytes_sent : 0; }

Collective Communicator::start_broadcast(at::Tensor buffer, int root, const std::string& label) {
  if (!connection_) return Collective([] {});
  const std::string operation = fmt::format("broadcast of '{}' from rank {}", label, root);
  const int32_t tag = next_tag(operation);
  auto messages = std::make_shared<std::vector<Message>>();
  if (world_.rank != root) {
    messages->push_back(receive(buffer, root, tag));
  } else {
    for (int peer = 0; peer < world_.size; ++peer) {
      if (peer != root) messages->push_back(send(buffer, peer, tag));
    }
  }
  return Collective([this, messages, operation] { wait(*messages, operation); });
}

// A message between two ranks is no turn of the others, so its tag counts no turns: messages of one label between one
// pair arrive in the order in which they were sent.
Collective Communicator::start_send(at::Tensor buffer, int to, const std::string& label) {
  TESSERA_INVARIANT(connection_ != nullptr && to != world_.rank);
  const std::string operation = fmt::format("message '{}' from rank {} to rank {}", label, world_.rank, to);
  auto messages = std::make_shared<std::vector<Message>>();
  messages->push_back(send(std::move(buffer), to, tag_of(channel_ + operation)));
  return Collective([this, messages, operation] { wait(*messages, operation); });
}

Collective Communicator::start_receive(at::Tensor buffer, int from, const std::string& label) {
  TESSERA_INVARIANT(connection_ != nullptr && from != world_.rank);
  const std::string operation = fmt::format("message '{}' from rank {} to rank {}", label, from, world_.rank);
  auto messages = std::make_shared<std::vector<Message>>();
  messages->push_back(receive(std::move(buffer), from, tag_of(channel_ + operation)));
  return Collective([this, messages, operation] { wait(*messages, operation); });
}

// False once the time-out has passed. cancel() ends it, which the store's own wait cannot offer.
bool Communicator::look_until(const std::vector<std::string>& keys) const {
  const auto deadline = steady_clock::now() + connection_->timeout;
  milliseconds pause(1);
  while (!own_store_->store->check(keys)) {
    if (cancelled_) {
      throw Error(ErrorKind::kPeer, {"given up, because this rank ends", fmt::format("rank {}", world_.rank), ""});
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
  const std::string prefix = fmt::format("exchange/{}/{}/{}", channel_, store_turn_++, label);
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_.size; ++rank) keys.push_back(fmt::format("{}/{}", prefix, rank));
  c10d::Store& store = own_store_ ? *own_store_->store : *connection_->store;
  try {
    store.set(keys[world_.rank], "=" + text);  // '=': the store refuses empty values in places
    if (!own_store_) store.wait(keys, connection_->timeout);
    if (own_store_ && !look_until(keys)) explain_missing(keys, label);
    std::vector<std::string> texts;
    for (const std::string& each : keys) texts.push_back(store.get_to_str(each).substr(1));
    // The last reader of a turn could delete its keys; a run has few of them, so they stay until the store closes.
    return texts;
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    explain_missing(keys, label);
  }
}

void Communicator::barrier(const std::string& label) { exchange_texts("", label); }

}  // namespace tessera::comm
