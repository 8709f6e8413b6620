// A half-open range of elements of something flat.
#pragma once

#include <cstdint>

namespace tessera::layout {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t numel() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

inline int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }
inline int64_t round_up(int64_t value, int64_t multiple) { return ceil_div(value, multiple) * multiple; }

// The part with this index of `count` equal ones, which begin at multiples of `align`; the last ones may be shorter, or
// empty.
inline Range part_of(Range whole, int64_t index, int64_t count, int64_t align) {
  const int64_t each = round_up(ceil_div(whole.numel(), count), align);
  const auto cut = [&](int64_t at) { return at < whole.end - whole.begin ? whole.begin + at : whole.end; };
  return {cut(index * each), cut((index + 1) * each)};
}

}  // namespace tessera::layout
