// A collective in flight, as Group's start functions return it.
#pragma once

#include <functional>

namespace tessera::comm {

// Move-only; finish() or take_result() must be called exactly once, or the handle destroyed during unwinding, in which
// case the messages in flight keep their tensors alive until they end.
class Collective {
 public:
  Collective() = default;
  void finish();

  // Waits only until what arrives is there. What this rank sends may still be read by others, so must not be written to
  // until settle() of the group; a tensor that is dropped is kept alive as long as that takes. Spares ranks that are a
  // little ahead the wait for those behind.
  void take_result();

  bool in_flight() const { return finish_ != nullptr; }

 private:
  friend class Group;
  enum class Until { kOver, kResult };
  using Finish = std::function<void(Until)>;
  explicit Collective(Finish finish) : finish_(std::move(finish)) {}
  void finish_until(Until until);
  Finish finish_;
};

}  // namespace tessera::comm
