// Rows of several sequences each, such as a source and a target, as samples that follow one another:
//
//   samples   source 0 | target 0 | source 1 | target 1 | …        TokenColumn(samples, {.of = 2, .place = 1}): the
//   targets
//
// So whatever keeps samples keeps rows. A view: the samples outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/data/dataset.h"

namespace tessera::data {

class TokenColumn {
 public:
  struct Which {
    size_t of = 1;     // sequences of a row
    size_t place = 0;  // of this one among them
  };
  TokenColumn(const TokenSamples& samples, Which which) : samples_(samples), which_(which) {}

  size_t size() const { return samples_.size() / which_.of; }
  std::span<const int32_t> sample(size_t row) const { return samples_.sample(number(row)); }
  bool is_target(size_t row, int64_t place) const { return samples_.is_target(number(row), place); }

  int64_t total_tokens() const {
    size_t total = 0;
    for (size_t row = 0; row < size(); ++row) total += sample(row).size();
    return static_cast<int64_t>(total);
  }

 private:
  size_t number(size_t row) const { return row * which_.of + which_.place; }

  const TokenSamples& samples_;
  Which which_;
};

// Of each of these rows.
inline std::vector<std::span<const int32_t>> samples_of(const TokenColumn& column, std::span<const size_t> rows) {
  std::vector<std::span<const int32_t>> samples;
  for (const size_t row : rows) samples.push_back(column.sample(row));
  return samples;
}

}  // namespace tessera::data
