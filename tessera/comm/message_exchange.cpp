#include "tessera/comm/message_exchange.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "tessera/base/pipe_signal.h"
#include "tessera/comm/ordered_sum.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// What a backend's exception says, for people: gloo's texts carry its build paths and advice of its own.
std::string reason_of(const std::exception& error) {
  const std::string text = error.what();
  for (const char* const sign : {"closed by peer", "reset by peer", "Broken pipe"}) {
    if (text.find(sign) != std::string::npos) return "its connection was closed";
  }
  return text.substr(0, text.find('\n'));
}

// gloo closes the connections of a wait that expired, so the peer of a late rank is told of a timeout too.
bool speaks_of_time(const std::string& reason) { return reason.find("timeout") != std::string::npos; }

// A send or a receive in flight; `work` keeps the tensor alive.
struct Message {
  c10::intrusive_ptr<c10d::Work> work;
  int peer;  // rank of the backend
};

void wait_for(std::vector<Message>& messages, Exchange::TimePoint deadline) {
  for (Message& message : messages) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    try {
      message.work->wait(std::max(milliseconds(1), left));
    } catch (const std::exception& error) {
      const std::string reason = reason_of(error);
      throw PeerFailure(message.peer, steady_clock::now() >= deadline || speaks_of_time(reason), reason);
    }
  }
}

// What exchanges over one backend share.
struct Line {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::mutex starting;  // a c10d::Backend is called by one thread at a time
};

class MessageExchange final : public Exchange {
 public:
  // `members`: ranks of the backend.
  MessageExchange(std::shared_ptr<Line> line, std::vector<int> members)
      : line_(std::move(line)),
        members_(std::move(members)),
        rank_(static_cast<int>(std::find(members_.begin(), members_.end(), line_->backend->getRank()) -
                               members_.begin())),
        size_(static_cast<int>(members_.size())) {}

  std::unique_ptr<Exchange> among(const std::vector<int>& ranks) const override {
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(members_[static_cast<size_t>(rank)]);
    return std::make_unique<MessageExchange>(line_, std::move(members));
  }

  PendingPtr all_gather(const at::Tensor& full, const at::Tensor& shard, uint64_t tag) override {
    const int64_t numel = shard.numel();
    const at::Tensor own = full.narrow(0, rank_ * numel, numel);
    if (own.data_ptr() != shard.data_ptr()) own.copy_(shard);
    auto pending = std::make_unique<Messages>();
    each_peer([&](int to, int from) {
      pending->messages.push_back(receive_message(full.narrow(0, from * numel, numel), from, tag));
      pending->messages.push_back(send_message(shard, to, tag));
    });
    return pending;
  }

  PendingPtr reduce_scatter(const at::Tensor& shard, const at::Tensor& full, double scale, uint64_t tag,
                            int64_t bucket_numel) override {
    return std::make_unique<Reduction>(*this, shard, full, scale, tag, std::max<int64_t>(1, bucket_numel / size_));
  }

  PendingPtr all_to_all(const std::vector<at::Tensor>& incoming, const std::vector<at::Tensor>& outgoing,
                        uint64_t tag) override {
    auto pending = std::make_unique<Messages>();
    each_peer([&](int to, int from) {
      if (incoming[from].numel() > 0) pending->messages.push_back(receive_message(incoming[from], from, tag));
      if (outgoing[to].numel() > 0) pending->messages.push_back(send_message(outgoing[to], to, tag));
    });
    return pending;
  }

  PendingPtr broadcast(const at::Tensor& buffer, int root, uint64_t tag) override {
    if (rank_ != root) return receive(buffer, root, tag);
    auto pending = std::make_unique<Messages>();
    each_peer([&](int to, int) { pending->messages.push_back(send_message(buffer, to, tag)); });
    return pending;
  }

  PendingPtr send(const at::Tensor& buffer, int to, uint64_t tag) override {
    auto pending = std::make_unique<Messages>();
    pending->messages.push_back(send_message(buffer, to, tag));
    return pending;
  }

  PendingPtr receive(const at::Tensor& buffer, int from, uint64_t tag) override {
    auto pending = std::make_unique<Messages>();
    pending->messages.push_back(receive_message(buffer, from, tag));
    return pending;
  }

 private:
  struct Messages final : Pending {
    void wait(TimePoint deadline) override { wait_for(messages, deadline); }
    std::vector<Message> messages;
  };

  // Piece by piece: the parts that arrive for one are as large as the piece for each rank. The first is under way from
  // the start.
  class Reduction final : public Pending {
   public:
    Reduction(MessageExchange& exchange, at::Tensor shard, at::Tensor full, double scale, uint64_t tag,
              int64_t piece_numel)
        : exchange_(exchange),
          shard_(std::move(shard)),
          full_(std::move(full)),
          scale_(scale),
          tag_(tag),
          piece_numel_(std::min(piece_numel, shard_.numel())) {
      start_piece();
    }

    void wait(TimePoint deadline) override {
      while (true) {
        wait_for(messages_, deadline);
        ordered_sum(parts_, scale_, piece_);
        offset_ += piece_numel_;
        if (offset_ >= shard_.numel()) return;
        start_piece();
      }
    }

   private:
    void start_piece() {
      const int64_t numel = std::min(piece_numel_, shard_.numel() - offset_);
      piece_ = shard_.narrow(0, offset_, numel);
      const auto part = [&](int rank) { return full_.narrow(0, rank * shard_.numel() + offset_, numel); };
      parts_.assign(exchange_.size_, at::Tensor());
      messages_.clear();
      parts_[exchange_.rank_] = part(exchange_.rank_);
      exchange_.each_peer([&](int to, int from) {
        parts_[from] = at::empty_like(piece_);
        messages_.push_back(exchange_.receive_message(parts_[from], from, tag_));
        messages_.push_back(exchange_.send_message(part(to), to, tag_));
      });
    }

    MessageExchange& exchange_;
    at::Tensor shard_;
    at::Tensor full_;
    double scale_;
    uint64_t tag_;
    int64_t piece_numel_;
    int64_t offset_ = 0;
    at::Tensor piece_;
    std::vector<at::Tensor> parts_;
    std::vector<Message> messages_;
  };

  // Each rank begins with another peer, so that they do not all send to the same one.
  template <class Visit>
  void each_peer(const Visit& visit) const {
    for (int step = 1; step < size_; ++step) visit((rank_ + step) % size_, (rank_ - step + size_) % size_);
  }

  // A c10d tag has 31 bits.
  static int short_tag(uint64_t tag) { return static_cast<int>((tag ^ (tag >> 31)) & 0x7fffffff); }

  Message send_message(const at::Tensor& buffer, int to, uint64_t tag) {
    bytes_sent_ += buffer.numel() * buffer.element_size();
    return start_message(buffer, to, tag, &c10d::Backend::send);
  }

  Message receive_message(const at::Tensor& buffer, int from, uint64_t tag) {
    return start_message(buffer, from, tag, &c10d::Backend::recv);
  }

  using Start = c10::intrusive_ptr<c10d::Work> (c10d::Backend::*)(std::vector<at::Tensor>&, int peer, int tag);

  Message start_message(const at::Tensor& buffer, int with, uint64_t tag, Start start) {
    std::vector<at::Tensor> tensors{buffer};
    const int peer = members_[static_cast<size_t>(with)];
    const std::lock_guard lock(line_->starting);
    const PipeSignalBlocked blocked;  // gloo's part of it is written from this thread
    try {
      return {(line_->backend.get()->*start)(tensors, peer, short_tag(tag)), peer};
    } catch (const std::exception& error) {
      throw PeerFailure(peer, /*late=*/false, reason_of(error));
    }
  }

  std::shared_ptr<Line> line_;
  std::vector<int> members_;
  int rank_;
  int size_;
};

}  // namespace

std::unique_ptr<Exchange> make_message_exchange(c10::intrusive_ptr<c10d::Backend> backend) {
  std::vector<int> members(static_cast<size_t>(backend->getSize()));
  std::iota(members.begin(), members.end(), 0);
  auto line = std::make_shared<Line>();
  line->backend = std::move(backend);
  return std::make_unique<MessageExchange>(std::move(line), std::move(members));
}

}  // namespace tessera::comm
