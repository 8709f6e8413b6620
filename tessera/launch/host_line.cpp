#include "tessera/launch/host_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "tessera/base/env.h"

namespace tessera::launch {
namespace {

constexpr std::string_view kBegin = "\033_tessera ";
constexpr std::string_view kEnd = "\033\\";
constexpr size_t kLongestMark = 64;
constexpr int64_t kUsualSilence = 20;       // seconds
constexpr int64_t kLongestSilence = 86400;  // a day: what is added to the time of now stays a time

std::string mark(const std::string& words) { return fmt::format("{}{}{}", kBegin, words, kEnd); }

}  // namespace

std::chrono::seconds allowed_silence() {
  return std::chrono::seconds(
      std::clamp<int64_t>(env_int("TESSERA_TIMEOUT").value_or(kUsualSilence), 1, kLongestSilence));
}

std::string alive_mark() { return mark("alive"); }

std::string failed_mark(const ToldFailure& failure) {
  return mark(fmt::format("failed {} {} {}", failure.rank, failure.exit.code, failure.exit.signal));
}

std::string MarkFilter::take(std::string_view bytes) {
  std::string text = std::exchange(held_, "");
  text += bytes;
  std::string plain;
  size_t at = 0;
  while (at < text.size()) {
    const size_t escape = text.find('\033', at);
    plain.append(text, at, escape == std::string::npos ? escape : escape - at);
    if (escape == std::string::npos) break;
    const std::string_view rest = std::string_view(text).substr(escape);
    const bool may_begin = kBegin.starts_with(rest.substr(0, kBegin.size()));
    const size_t end = may_begin ? rest.substr(0, kLongestMark).find(kEnd, 1) : std::string::npos;
    if (may_begin && rest.size() < kLongestMark && end == std::string::npos) {
      held_ = rest;
      break;
    }
    if (end == std::string::npos || rest.size() < kBegin.size()) {  // somebody else's
      plain += '\033';
      at = escape + 1;
      continue;
    }
    found_one_ = true;
    std::istringstream words(std::string(rest.substr(kBegin.size(), end - kBegin.size())));
    std::string kind;
    ToldFailure failure;
    if (words >> kind >> failure.rank >> failure.exit.code >> failure.exit.signal && kind == "failed") {
      failures_.push_back(failure);
    }
    at = escape + end + kEnd.size();
  }
  return plain;
}

std::string MarkFilter::finish() { return std::exchange(held_, ""); }

std::optional<ToldFailure> MarkFilter::next_failure() {
  if (failures_.empty()) return std::nullopt;
  const ToldFailure failure = failures_.front();
  failures_.pop_front();
  return failure;
}

}  // namespace tessera::launch
