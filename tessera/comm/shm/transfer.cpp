#include "tessera/comm/shm/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::comm::shm {
namespace {

// A message of up to this many bytes is copied even if it could be read in place: its sender need not wait for anybody.
constexpr size_t kSmallBytes = 16 << 10;

constexpr size_t kMaxStaged = 2;        // pieces of one lending
constexpr size_t kLeastStaging = 2;     // blocks that are there from the start
constexpr size_t kMaxSpareStaging = 8;  // … and that are kept

size_t piece_bytes(size_t parts) { return kStagingBytes / parts / 64 * 64; }

}  // namespace

Host::Host(int rank, std::shared_ptr<Heap> heap, std::vector<std::optional<Segment>> peers)
    : rank_(rank), heap_(std::move(heap)), peers_(std::move(peers)), arrived_(peers_.size()) {
  for (const auto& peer : peers_) mailboxes_.emplace_back(peer ? *peer : heap_->segment());
  for (size_t block = 0; block < kLeastStaging; ++block) {
    auto staging = heap_->try_allocate(kStagingBytes);
    if (!staging) throw Error(ErrorKind::kMachine, {"there is no room in shared memory", "this host", "free memory"});
    spare_staging_.push_back(std::move(*staging));
  }
}

Host::~Host() {
  for (Staged& staged : staged_) {
    if (!own().is_read(staged.post)) Heap::leave(std::move(staged.bytes));
  }
}

std::optional<c10::DataPtr> Host::staging() {
  if (spare_staging_.empty()) return heap_->try_allocate(kStagingBytes);
  c10::DataPtr block = std::move(spare_staging_.back());
  spare_staging_.pop_back();
  return block;
}

std::optional<uint32_t> Host::post(uint64_t readers, uint64_t tag, uint64_t offset, uint64_t stride, uint64_t begin,
                                   uint64_t bytes, c10::DataPtr staging) {
  const auto number = own().post(readers, tag, offset, stride, begin, bytes);
  if (!number) return std::nullopt;
  if (staging) staged_.push_back({*number, std::move(staging)});
  for (uint64_t left = readers; left != 0; left &= left - 1) mailboxes_[std::countr_zero(left)].ring();
  return number;
}

std::optional<uint32_t> Host::take(int peer, uint64_t tag) {
  auto& arrived = arrived_[static_cast<size_t>(peer)];
  const auto found = arrived.find(tag);
  if (found == arrived.end()) return std::nullopt;
  const uint32_t number = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) arrived.erase(found);
  return number;
}

const std::byte* Host::bytes_of(int peer, uint64_t offset) const {
  return peers_[static_cast<size_t>(peer)]->data() + offset;
}

void Host::give_back(int peer, uint32_t number) {
  Mailbox& mailbox = mailboxes_[static_cast<size_t>(peer)];
  mailbox.mark_read(number, rank_);
  mailbox.ring();
}

void Host::look_around() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    Mailbox& mailbox = mailboxes_[static_cast<size_t>(peer)];
    while (const auto number = mailbox.next_for(rank_)) {
      arrived_[static_cast<size_t>(peer)][mailbox.at(*number).tag].push_back(*number);
    }
  }
  std::erase_if(staged_, [&](Staged& staged) {
    if (!own().is_read(staged.post)) return false;
    if (spare_staging_.size() < kMaxSpareStaging) spare_staging_.push_back(std::move(staged.bytes));
    return true;
  });
}

Lending::Lending(at::Tensor source, uint64_t readers, size_t stride, size_t part_bytes, uint64_t tag,
                 std::vector<int> parts)
    : source_(std::move(source)),
      readers_(readers),
      stride_(stride),
      part_bytes_(part_bytes),
      tag_(tag),
      parts_(std::move(parts)) {}

bool Lending::advance(Host& host) {
  if (over_) return false;
  if (way_ == Way::kOpen) choose(host);
  if (way_ == Way::kInPlace && posts_.empty()) {
    if (const auto number = host.post(readers_, tag_, *offset_, stride_, /*begin=*/0, part_bytes_)) {
      posts_.push_back(*number);
      return true;
    }
    return false;
  }
  const size_t before = posts_.size();
  std::erase_if(posts_, [&](uint32_t number) { return host.own().is_read(number); });
  bool moved = posts_.size() < before;
  if (way_ == Way::kStaged) {
    while (sent_ < part_bytes_ && posts_.size() < kMaxStaged && stage(host)) moved = true;
    over_ = sent_ == part_bytes_;  // the copies are the host's affair
  } else {
    over_ = posts_.empty();
  }
  if (over_) source_ = at::Tensor();
  return moved || over_;
}

void Lending::choose(Host& host) {
  own_ = &host.own();
  const size_t whole = stride_ == 0 ? part_bytes_ : stride_ * (parts_.size() - 1) + part_bytes_;
  if (whole > kSmallBytes) offset_ = host.heap().offset_of(source_.const_data_ptr(), whole);
  way_ = offset_ ? Way::kInPlace : Way::kStaged;
}

bool Lending::stage(Host& host) {
  const size_t parts = stride_ == 0 ? 1 : parts_.size();
  const size_t piece = piece_bytes(parts);
  const size_t bytes = std::min(piece, part_bytes_ - sent_);
  auto staging = host.staging();
  if (!staging) return false;
  auto* const to = static_cast<std::byte*>(staging->get());
  const auto* const from = static_cast<const std::byte*>(source_.const_data_ptr()) + sent_;
  for (size_t part = 0; part < parts; ++part) {
    if (stride_ == 0 || ((readers_ >> parts_[part]) & 1) != 0)
      std::memcpy(to + part * bytes, from + part * stride_, bytes);
  }
  const auto offset = host.heap().offset_of(to, parts * bytes);
  const auto number = host.post(readers_, tag_, *offset, stride_ == 0 ? 0 : bytes, sent_, bytes, std::move(*staging));
  if (!number) return false;
  posts_.push_back(*number);
  sent_ += bytes;
  return true;
}

uint64_t Lending::awaited() const {
  if (over_) return 0;
  if (posts_.empty()) return readers_;
  return own_->at(posts_.front()).readers.load(std::memory_order_relaxed);
}

size_t Borrowing::available(Host& host) {
  if (is_over()) return 0;
  if (!post_) post_ = host.take(peer_, tag_);
  if (!post_) return 0;
  const Post& post = host.post_of(peer_, *post_);
  TESSERA_INVARIANT(post.begin <= done_ && done_ < post.begin + post.bytes);
  if (post.begin + post.bytes > bytes_) {
    throw Error(ErrorKind::kPeer, {fmt::format("rank {} sent at least {} bytes where {} were expected", peer_,
                                               post.begin + post.bytes, bytes_),
                                   fmt::format("rank {}", host.rank()), "use tensors of the same size on all ranks"});
  }
  return post.begin + post.bytes - done_;
}

const std::byte* Borrowing::data(Host& host) const {
  const Post& post = host.post_of(peer_, *post_);
  return host.bytes_of(peer_, post.offset + static_cast<uint64_t>(part_) * post.stride + done_ - post.begin);
}

void Borrowing::consume(Host& host, size_t bytes) {
  const Post& post = host.post_of(peer_, *post_);
  done_ += bytes;
  if (done_ < post.begin + post.bytes) return;
  host.give_back(peer_, *post_);
  post_.reset();
}

}  // namespace tessera::comm::shm
