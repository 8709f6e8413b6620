#include "tessera/launch/world_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"

namespace tessera::launch {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr int kMostSlots = 99999;  // of a host, as in a hostfile

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const std::string_view group = bytes.substr(at, 3);
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < group.size() ? static_cast<unsigned char>(group[i]) : 0);
    for (size_t i = 0; i < 4; ++i) text += i <= group.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

[[noreturn]] void refuse_world_info() {
  throw Error(ErrorKind::kUsage, {"--world_info was not written by the deepspeed launcher", "the command line",
                                  "start the program with deepspeed"});
}

std::string from_base64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) refuse_world_info();
    bits = bits << 6 | static_cast<uint32_t>(digit);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 255);
  }
  return bytes;
}

}  // namespace

// With the blanks that Python's json writes, so that the word is DeepSpeed's own.
std::string encode_world_info(const std::vector<HostSlots>& hosts) {
  std::string json;
  for (const HostSlots& host : hosts) {
    json += fmt::format("{}{}: [{}]", json.empty() ? "" : ", ",
                        nlohmann::json(host.host).dump(-1, ' ', /*ensure_ascii=*/true), fmt::join(host.slots, ", "));
  }
  return to_base64("{" + json + "}");
}

std::vector<HostSlots> decode_world_info(const std::string& text) {
  std::vector<HostSlots> hosts;
  try {
    const nlohmann::ordered_json json = parse_ordered_json(from_base64(text), {.where = "--world_info"});
    if (!json.is_object()) refuse_world_info();
    for (const auto& [host, value] : json.items()) {
      const nlohmann::json slots = value;
      if (!slots.is_number()) {
        hosts.push_back({host, wholes_of<int>(slots)});
        continue;
      }
      const int count = whole_of<int>(slots);
      if (count < 0 || count > kMostSlots) refuse_world_info();
      hosts.push_back({host, first_slots(count)});
    }
  } catch (const std::exception&) {
    refuse_world_info();
  }
  if (rank_count(hosts) == 0) refuse_world_info();
  return hosts;
}

}  // namespace tessera::launch
