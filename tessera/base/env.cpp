#include "tessera/base/env.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera {

std::optional<std::string> env_text(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<std::string> env_choice(const std::string& name, std::initializer_list<std::string_view> allowed) {
  auto text = env_text(name);
  if (!text || std::find(allowed.begin(), allowed.end(), *text) != allowed.end()) return text;
  throw Error(ErrorKind::kUsage, {fmt::format("{} is '{}'", name, *text), "the environment",
                                  fmt::format("use {}, or unset it", fmt::join(allowed, " or "))});
}

std::optional<int64_t> env_int(const std::string& name) {
  const auto text = env_text(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw Error(ErrorKind::kUsage, {fmt::format("{} is '{}', not a whole number", name, *text), "the environment",
                                    fmt::format("set {} to a whole number or unset it", name)});
  }
  return value;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace tessera
