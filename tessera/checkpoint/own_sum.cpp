#include "tessera/checkpoint/own_sum.h"

#include <string_view>

#include "tessera/base/error.h"
#include "tessera/storage/file_sum.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kSumKey = "\"xxh3\": \"";
constexpr std::string_view kZeroDigits = kNoSum;

// The place of the digits; npos where there are none.
size_t place_of_sum(const std::string& text) {
  const size_t found = text.find(kSumKey);
  if (found == std::string::npos || text.size() < found + kSumKey.size() + kZeroDigits.size()) return std::string::npos;
  return found + kSumKey.size();
}

std::string digits_of(const std::string& text) {
  return storage::to_text({storage::hash_of(text.data(), text.size())});
}

}  // namespace

std::string with_own_sum(std::string text) {
  const size_t place = place_of_sum(text);
  TESSERA_INVARIANT(place != std::string::npos && text.compare(place, kZeroDigits.size(), kZeroDigits) == 0);
  const std::string sum = digits_of(text);
  return text.replace(place, kZeroDigits.size(), sum);
}

bool has_own_sum(std::string text) {
  const size_t place = place_of_sum(text);
  if (place == std::string::npos) return false;
  const std::string sum = text.substr(place, kZeroDigits.size());
  text.replace(place, kZeroDigits.size(), kZeroDigits);
  return sum == digits_of(text);
}

}  // namespace tessera::checkpoint
