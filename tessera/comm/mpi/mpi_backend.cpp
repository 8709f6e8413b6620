#include "tessera/comm/mpi/mpi_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/mpi/library.h"

namespace tessera::comm::mpi {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

constexpr size_t kPieceBytes = 1 << 30;  // MPI counts in int; pieces of one tag arrive in order

// A tensor that goes to a peer or comes from it, and what of that is still in flight, in order.
struct Message {
  struct Piece {
    Request request;
    int bytes;
  };

  at::Tensor tensor;
  OpType type;
  int peer;
  std::deque<Piece> pieces;
};

// What a backend and the messages in flight share: a communicator, which only goes when the last of them has.
class Connection {
 public:
  Connection(const std::vector<int>& ranks_of_job, milliseconds timeout)
      : library_(Library::of_this_process(timeout)), group_(library_.make_group(ranks_of_job)), timeout_(timeout) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // A message that nobody waits for may still be written to by MPI: its memory is given up sooner than taken back.
  ~Connection() {
    try {
      for (const Message& message : left_alone_) cancel(message);
      if (sweep()) library_.free_group(group_);
    } catch (const std::exception& error) {
      log_debug("{}", error.what());
    }
    for (Message& message : left_alone_) message.tensor.unsafeReleaseTensorImpl();
  }

  Library& library() { return library_; }
  milliseconds timeout() const { return timeout_; }

  Message start(OpType type, const at::Tensor& tensor, int peer, int tag) {
    sweep();
    Message message{tensor, type, peer, {}};
    const std::span<std::byte> all(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
    const Route route{group_, peer, shorten(tag)};
    size_t begin = 0;
    do {  // also a message of no bytes is one
      const std::span<std::byte> piece = all.subspan(begin, std::min(all.size() - begin, kPieceBytes));
      const Request request =
          type == OpType::SEND ? library_.start_send(piece, route) : library_.start_receive(piece, route);
      message.pieces.push_back({request, static_cast<int>(piece.size())});
      begin += piece.size();
    } while (begin < all.size());
    return message;
  }

  void leave_alone(Message message) {
    const std::lock_guard lock(mutex_);
    left_alone_.push_back(std::move(message));
  }

 private:
  // MPI promises 15 bits, OpenMPI has 31 or 23, MPICH 28; c10d's tags have 31. Two that become one are told apart by
  // the order in which they are sent, which is the same on all ranks unless they belong to different channels.
  int shorten(int tag) const {
    const int bits = std::min(31, library_.job().tag_bits);
    const auto wide = static_cast<uint64_t>(tag);
    return static_cast<int>((wide ^ (wide >> bits)) & ((uint64_t{1} << bits) - 1));
  }

  // Forgets the messages that are done; true when none is left.
  bool sweep() {
    const std::lock_guard lock(mutex_);
    for (Message& message : left_alone_) {
      while (!message.pieces.empty() && library_.test(message.pieces.front().request)) message.pieces.pop_front();
    }
    std::erase_if(left_alone_, [](const Message& message) { return message.pieces.empty(); });
    return left_alone_.empty();
  }

  void cancel(const Message& message) {
    if (message.type == OpType::SEND) return;  // cannot be taken back
    for (const Message::Piece& piece : message.pieces) library_.cancel(piece.request);
  }

  Library& library_;
  Group group_;
  milliseconds timeout_;
  std::mutex mutex_;
  std::vector<Message> left_alone_;
};

class MessageWork final : public c10d::Work {
 public:
  MessageWork(int rank, std::shared_ptr<Connection> connection, Message message)
      : Work(rank, message.type), connection_(std::move(connection)), message_(std::move(message)) {}

  ~MessageWork() override {
    if (!message_.pieces.empty()) connection_->leave_alone(std::move(message_));
  }

  bool wait(milliseconds timeout) override {
    const std::lock_guard lock(moving_);
    const Deadline deadline(timeout.count() > 0 ? timeout : connection_->timeout(), awaited());
    while (!message_.pieces.empty()) {
      settle(connection_->library().wait(message_.pieces.front().request, deadline));
    }
    return true;
  }

  bool isCompleted() override {
    const std::lock_guard lock(moving_);
    while (!message_.pieces.empty()) {
      const auto bytes = connection_->library().test(message_.pieces.front().request);
      if (!bytes) return false;
      settle(*bytes);
    }
    return true;
  }

  bool isSuccess() const override { return message_.pieces.empty() && !exception_; }
  std::vector<at::Tensor> result() override { return {message_.tensor}; }

 private:
  std::string awaited() const {
    return fmt::format("rank {} to {} a {}-byte message", message_.peer,
                       message_.type == OpType::SEND ? "receive" : "send", message_.tensor.nbytes());
  }

  // The first piece is done, and had so many bytes.
  void settle(int bytes) {
    const int expected = message_.pieces.front().bytes;
    message_.pieces.pop_front();
    if (message_.type == OpType::SEND || bytes == expected) return;
    throw Error(ErrorKind::kPeer,
                {fmt::format("rank {} sent {} bytes where {} were expected", message_.peer, bytes, expected), "MPI",
                 "every rank must run the same units"});
  }

  std::mutex moving_;  // apart from Work's own
  std::shared_ptr<Connection> connection_;
  Message message_;
};

class MpiBackend final : public c10d::Backend {
 public:
  MpiBackend(int rank, const std::vector<int>& ranks_of_job, milliseconds timeout)
      : Backend(rank, static_cast<int>(ranks_of_job.size())),
        connection_(std::make_shared<Connection>(ranks_of_job, timeout)) {}

  const std::string getBackendName() const override { return "mpi"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return start(OpType::SEND, tensors, to, tag);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return start(OpType::RECV, tensors, from, tag);
  }

 private:
  c10::intrusive_ptr<c10d::Work> start(OpType type, const std::vector<at::Tensor>& tensors, int peer, int tag) {
    TESSERA_INVARIANT(tensors.size() == 1 && tensors[0].is_contiguous() && tensors[0].is_cpu());
    return c10::make_intrusive<MessageWork>(getRank(), connection_, connection_->start(type, tensors[0], peer, tag));
  }

  std::shared_ptr<Connection> connection_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_backend(int rank, const std::vector<int>& ranks_of_job, milliseconds timeout) {
  return c10::make_intrusive<MpiBackend>(rank, ranks_of_job, timeout);
}

}  // namespace tessera::comm::mpi
