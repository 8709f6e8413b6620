// Work on numbered items, on two threads at most.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace tessera::data {

// Calls `some` for the first half of the items and, on a thread of its own, for the second; a half without items is not
// called for. Returns once both have ended; throws what the first half threw, else what the second did.
inline void on_two_threads(size_t count, const std::function<void(size_t from, size_t to)>& some) {
  if (count < 2) {
    if (count == 1) some(0, 1);
    return;
  }
  const size_t half = count / 2;
  std::exception_ptr first_failed, second_failed;
  std::thread second([&] {
    try {
      some(half, count);
    } catch (...) {
      second_failed = std::current_exception();
    }
  });
  try {
    some(0, half);
  } catch (...) {
    first_failed = std::current_exception();
  }
  second.join();
  for (const auto& failed : {first_failed, second_failed}) {
    if (failed) std::rethrow_exception(failed);
  }
}

// What `make` makes of each item, in their order.
template <class Item, class Make>
auto made_on_two_threads(const std::vector<Item>& items, const Make& make) {
  std::vector<decltype(make(items.front()))> made(items.size());
  on_two_threads(items.size(), [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) made[i] = make(items[i]);
  });
  return made;
}

}  // namespace tessera::data
