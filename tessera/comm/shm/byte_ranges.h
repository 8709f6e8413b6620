// A set of bytes, kept as ranges that do not touch.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace tessera::comm::shm {

class ByteRanges {
 public:
  using Map = std::map<size_t, size_t>;  // begin → end

  void add(size_t begin, size_t end);
  void remove(size_t begin, size_t end);

  // What of [begin, end) is not in the set, in ascending order.
  std::vector<std::pair<size_t, size_t>> missing(size_t begin, size_t end) const;

  const Map& ranges() const { return ranges_; }

 private:
  Map::iterator first_ending_after(size_t begin);

  Map ranges_;
};

}  // namespace tessera::comm::shm
