// Finds what streams do to the same bytes with nothing that orders it. Told of each operation when it is put on its
// stream: which bytes it reads and writes. Two operations are ordered if they are on one stream, or if events (recorded
// on one, waited for by the other) or the host's waits lead from the first to the second; each stream has a vector
// clock. So a pair is found however the streams' threads happen to run. Not thread-safe: far_stream.cpp's lock.
//
// Ranges are the bytes between an operand's first and last element. What the host itself reads and writes of pinned
// memory is not seen.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/far_stream_handle.h"

namespace tessera::test {

// For each stream, how many of its operations have ended before.
class FarClock {
 public:
  void learn(const FarClock& other);
  void learn(c10::StreamId stream, uint64_t number);
  uint64_t of(c10::StreamId stream) const;
  bool knows(const FarClock& other) const;

 private:
  std::vector<uint64_t> numbers_;
};

struct FarOperation {
  std::string name;
  c10::StreamId stream;
  uint64_t number;  // on its stream, from 1
  FarClock before;  // what has ended before it
  std::vector<FarAccess> accesses;
};

class FarRecorder {
 public:
  // Adds what it finds to `races`, each pair of names and streams once.
  void add(const FarOperation& operation, std::vector<std::string>* races);
  void forget(const void* begin, size_t bytes);
  void clear() { spans_.clear(); }

 private:
  struct Touch {
    std::string name;
    c10::StreamId stream = 0;
    uint64_t number = 0;  // 0: never
    size_t bytes = 0;     // of the whole access
  };
  struct Span {
    uintptr_t end;
    Touch write;
    std::map<c10::StreamId, Touch> reads;  // since the write, the last of each stream
  };

  void split(uintptr_t at);

  std::map<uintptr_t, Span> spans_;  // by begin
};

}  // namespace tessera::test
