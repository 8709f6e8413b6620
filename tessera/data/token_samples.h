// Token ids of numbered samples in one flat array, and which of them a loss counts.
//
//   tokens   a b c | d | e f …       int32
//   sample i is the span between two offsets
//
// Spans live as long as this, until the next add(). Safe to read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::data {

class TokenSamples {
 public:
  size_t size() const { return offsets_.size() - 1; }
  std::span<const int32_t> sample(size_t i) const {
    return std::span(tokens_).subspan(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  int64_t total_tokens() const { return static_cast<int64_t>(tokens_.size()); }

  // Whether the sample's token at this place is one to be predicted. All are, where nobody said otherwise.
  bool is_target(size_t i, int64_t place) const {
    return is_target_.empty() || is_target_[offsets_[i] + static_cast<size_t>(place)];
  }

  // Either all samples are added with targets, as many as tokens, or none.
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> targets = {}) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    is_target_.insert(is_target_.end(), targets.begin(), targets.end());
    offsets_.push_back(tokens_.size());
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<bool> is_target_;     // as many as tokens, or none
  std::vector<size_t> offsets_{0};  // size() + 1 of them
};

}  // namespace tessera::data
