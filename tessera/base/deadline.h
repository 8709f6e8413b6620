// A point in time by which a wait must end, and the name of what is waited for, so that an expired wait can say both.
//
//   const Deadline deadline(5min, "rank 3 to join the all-gather of 'layers.7'");
//   while (!arrived()) { deadline.check(); … }
//
// A value; safe to copy and to read from any thread.
#pragma once

#include <chrono>
#include <string>

namespace tessera {

class Deadline {
 public:
  Deadline(std::chrono::milliseconds allowed, std::string awaited);

  bool expired() const;
  std::chrono::milliseconds left() const;  // never negative
  std::chrono::milliseconds allowed() const { return allowed_; }

  // Throws ErrorKind::kPeer "waited 300 s for <awaited>" once expired.
  void check() const;

 private:
  std::chrono::milliseconds allowed_;
  std::chrono::steady_clock::time_point end_;
  std::string awaited_;
};

}  // namespace tessera
