#include "tessera/base/fault_point.h"

#ifdef TESSERA_FAULT_POINTS

#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace tessera {
namespace {

// At which of its places this process dies; 0: never.
long place_of_death() {
  const char* const asked = std::getenv("TESSERA_FAULT");
  if (asked == nullptr) return 0;
  const std::string text = asked;
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return 0;
  const char* const rank = std::getenv("RANK");
  const std::string own = rank == nullptr ? "0" : rank;
  const std::string whose = text.substr(0, colon);
  return whose == "*" || whose == own ? std::strtol(text.c_str() + colon + 1, nullptr, 10) : 0;
}

}  // namespace

void fault_point() {
  static const long place = place_of_death();
  static std::atomic<long> passed = 0;
  if (place > 0 && ++passed == place) raise(SIGKILL);
}

}  // namespace tessera

#else

void tessera::fault_point() {}

#endif
