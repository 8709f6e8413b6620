#include "tessera/base/fault_point.h"

#ifdef TESSERA_FAULT_POINTS

#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace tessera {
namespace {

// What is asked of this rank: a place, or the name of a fault; empty: nothing.
std::string asked_fault() {
  const char* const asked = std::getenv("TESSERA_FAULT");
  if (asked == nullptr) return "";
  const std::string text = asked;
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return "";
  const char* const rank = std::getenv("RANK");
  const std::string own = rank == nullptr ? "0" : rank;
  const std::string whose = text.substr(0, colon);
  return whose == "*" || whose == own ? text.substr(colon + 1) : "";
}

// At which of its places this process dies; 0: never.
long place_of_death() { return std::strtol(asked_fault().c_str(), nullptr, 10); }

}  // namespace

void fault_point() {
  static const long place = place_of_death();
  static std::atomic<long> passed = 0;
  if (place > 0 && ++passed == place) raise(SIGKILL);
}

bool fault_asked(const char* name) { return asked_fault() == name; }

}  // namespace tessera

#else

void tessera::fault_point() {}

bool tessera::fault_asked(const char*) { return false; }

#endif
