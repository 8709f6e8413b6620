#include "tests/support/far_recorder.h"

#include <algorithm>

namespace tessera::test {
namespace {

size_t index_of(c10::StreamId stream) { return static_cast<size_t>(stream); }

std::string on_stream(const std::string& name, c10::StreamId stream) {
  return "'" + name + "' on stream " + std::to_string(stream);
}

}  // namespace

void FarClock::learn(const FarClock& other) {
  numbers_.resize(std::max(numbers_.size(), other.numbers_.size()));
  for (size_t i = 0; i < other.numbers_.size(); ++i) numbers_[i] = std::max(numbers_[i], other.numbers_[i]);
}

void FarClock::learn(c10::StreamId stream, uint64_t number) {
  numbers_.resize(std::max(numbers_.size(), index_of(stream) + 1));
  numbers_[index_of(stream)] = std::max(numbers_[index_of(stream)], number);
}

uint64_t FarClock::of(c10::StreamId stream) const {
  return index_of(stream) < numbers_.size() ? numbers_[index_of(stream)] : 0;
}

bool FarClock::knows(const FarClock& other) const {
  for (size_t i = 0; i < other.numbers_.size(); ++i) {
    if (of(static_cast<c10::StreamId>(i)) < other.numbers_[i]) return false;
  }
  return true;
}

void FarRecorder::split(uintptr_t at) {
  auto after = spans_.upper_bound(at);
  if (after == spans_.begin()) return;
  auto span = std::prev(after);
  if (span->first == at || span->second.end <= at) return;
  Span second = span->second;
  span->second.end = at;
  spans_.emplace(at, std::move(second));
}

void FarRecorder::add(const FarOperation& operation, std::vector<std::string>* races) {
  for (const FarAccess& access : operation.accesses) {
    if (access.bytes == 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(access.begin), end = begin + access.bytes;
    split(begin);
    split(end);
    const auto check = [&](const Touch& earlier, const char* did) {
      if (earlier.number == 0 || earlier.stream == operation.stream) return;
      if (operation.before.of(earlier.stream) >= earlier.number) return;
      std::string text = on_stream(operation.name, operation.stream) + (access.writes ? " writes " : " reads ") +
                         std::to_string(access.bytes) + " bytes, of which " + on_stream(earlier.name, earlier.stream) +
                         did + ", in " + std::to_string(earlier.bytes) + " bytes: nothing orders them";
      if (std::find(races->begin(), races->end(), text) == races->end()) races->push_back(std::move(text));
    };
    const Touch touch{operation.name, operation.stream, operation.number, access.bytes};
    uintptr_t reached = begin;
    for (auto span = spans_.lower_bound(begin); reached < end;) {
      if (span == spans_.end() || span->first > reached) {
        const uintptr_t until = span == spans_.end() ? end : std::min(end, span->first);
        span = spans_.emplace(reached, Span{until, {}, {}}).first;
      }
      check(span->second.write, " has written");
      if (access.writes) {
        for (const auto& [stream, read] : span->second.reads) check(read, " reads");
        span->second.reads.clear();
        span->second.write = touch;
      } else {
        span->second.reads[operation.stream] = touch;
      }
      reached = span->second.end;
      ++span;
    }
  }
}

void FarRecorder::forget(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address), end = begin + bytes;
  split(begin);
  split(end);
  spans_.erase(spans_.lower_bound(begin), spans_.lower_bound(end));
}

}  // namespace tessera::test
