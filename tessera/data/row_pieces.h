// Rows of a file that come one by one: they are worked on in pieces, on two threads at most, and what becomes of them
// is taken in their order. No more than a piece is held.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "tessera/data/two_threads.h"

namespace tessera::data {

template <class Row, class Result>
class RowPieces {
 public:
  // `make` is called on either thread, `take` on the caller's.
  RowPieces(std::function<Result(const Row& row)> make, std::function<void(const Result& result)> take)
      : make_(std::move(make)), take_(std::move(take)) {}

  // `bytes`: what the row takes, about.
  void add(Row row, size_t bytes) {
    rows_.push_back(std::move(row));
    bytes_ += bytes + sizeof(Row);
    if (bytes_ >= kPieceBytes) finish();
  }

  // Those that wait; before the results are all.
  void finish() {
    const std::vector<Result> results = made_on_two_threads(rows_, make_);
    rows_.clear();
    bytes_ = 0;
    for (const Result& result : results) take_(result);
  }

 private:
  static constexpr size_t kPieceBytes = 4U << 20;

  std::function<Result(const Row& row)> make_;
  std::function<void(const Result& result)> take_;
  std::vector<Row> rows_;
  size_t bytes_ = 0;
};

}  // namespace tessera::data
