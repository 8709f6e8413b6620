#include "tessera/data/unicode_regex.h"

#include <fmt/format.h>
#include <unicode/regex.h>
#include <unicode/utext.h>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr int32_t kTimeLimit = 1000;  // of one match, in steps of ICU's engine: about a second

// \s and \S are ICU's own otherwise; inside of brackets and out.
std::string with_white_space(const std::string& pattern) {
  std::string result;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      result += pattern[i];
      continue;
    }
    const char next = pattern[++i];
    if (next == 's' || next == 'S') {
      result += next == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    } else {
      result += {'\\', next};
    }
  }
  return result;
}

}  // namespace

struct UnicodeRegex::Compiled {
  std::unique_ptr<icu::RegexPattern> pattern;
};

UnicodeRegex::UnicodeRegex(const std::string& pattern, const std::string& path)
    : compiled_(std::make_unique<Compiled>()) {
  UErrorCode status = U_ZERO_ERROR;
  UParseError place{};
  compiled_->pattern.reset(
      icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(with_white_space(pattern)), 0, place, status));
  if (U_SUCCESS(status)) return;
  throw Error(ErrorKind::kData,
              {fmt::format("'{:.200}' is not a regular expression", pattern), path, "check the file, or get it again"});
}

UnicodeRegex::~UnicodeRegex() = default;
UnicodeRegex::UnicodeRegex(UnicodeRegex&&) noexcept = default;

void UnicodeRegex::for_each_match(std::string_view text, const Visitor& visit) const {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::RegexMatcher> matcher(compiled_->pattern->matcher(status));
  UText over = UTEXT_INITIALIZER;
  utext_openUTF8(&over, text.data(), static_cast<int64_t>(text.size()), &status);
  if (U_SUCCESS(status)) {
    matcher->setTimeLimit(kTimeLimit, status);
    matcher->reset(&over);
    while (matcher->find(status) && U_SUCCESS(status)) {
      const auto begin = static_cast<size_t>(matcher->start64(status)),
                 end = static_cast<size_t>(matcher->end64(status));
      if (begin < end) visit(begin, end);
    }
  }
  utext_close(&over);
  if (U_SUCCESS(status)) return;
  throw Error(ErrorKind::kData, {fmt::format("a tokenizer's regular expression gave up on a text of {} bytes ({})",
                                             text.size(), u_errorName(status)),
                                 "the data", "split the text into shorter lines"});
}

}  // namespace tessera::data
