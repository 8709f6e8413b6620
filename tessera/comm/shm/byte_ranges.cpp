#include "tessera/comm/shm/byte_ranges.h"

#include <algorithm>
#include <iterator>

namespace tessera::comm::shm {

// The first range that ends at `begin` or later.
ByteRanges::Map::iterator ByteRanges::first_ending_after(size_t begin) {
  const auto next = ranges_.upper_bound(begin);
  if (next == ranges_.begin()) return next;
  const auto before = std::prev(next);
  return before->second >= begin ? before : next;
}

void ByteRanges::add(size_t begin, size_t end) {
  if (begin == end) return;
  auto each = first_ending_after(begin);
  while (each != ranges_.end() && each->first <= end) {
    begin = std::min(begin, each->first);
    end = std::max(end, each->second);
    each = ranges_.erase(each);
  }
  ranges_[begin] = end;
}

void ByteRanges::remove(size_t begin, size_t end) {
  if (begin == end) return;
  auto each = first_ending_after(begin);
  while (each != ranges_.end() && each->first < end) {
    const auto [from, to] = *each;
    each = ranges_.erase(each);
    if (from < begin) ranges_[from] = std::min(to, begin);
    if (to > end) ranges_[std::max(from, end)] = to;
  }
}

std::vector<std::pair<size_t, size_t>> ByteRanges::missing(size_t begin, size_t end) const {
  std::vector<std::pair<size_t, size_t>> gaps;
  auto each = ranges_.upper_bound(begin);
  if (each != ranges_.begin()) each = std::prev(each);
  for (; each != ranges_.end() && each->first < end; ++each) {
    if (each->first > begin) gaps.emplace_back(begin, each->first);
    begin = std::max(begin, each->second);
  }
  if (begin < end) gaps.emplace_back(begin, end);
  return gaps;
}

}  // namespace tessera::comm::shm
