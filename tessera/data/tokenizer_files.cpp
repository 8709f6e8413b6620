#include "tessera/data/tokenizer_files.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

using nlohmann::json;

constexpr int32_t kLargestId = 10'000'000;  // far above any vocabulary; a larger id is damage and would only eat memory

}  // namespace

int32_t read_id(const json& id, const std::string& token, const std::string& path) {
  if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kLargestId) {
    throw Error(
        ErrorKind::kData,
        {fmt::format("the id of token '{}' is {}, not a whole number of at least 0", token, id.dump()), path, ""});
  }
  return id.get<int32_t>();
}

std::vector<AddedToken> read_added_tokens(const json& list, const std::string& path) {
  std::vector<AddedToken> tokens;
  for (const json& entry : list) {
    const auto content = json_value(entry, "content", std::string(), path);
    const auto flag = [&](const char* key, bool otherwise) { return json_value(entry, key, otherwise, path); };
    tokens.push_back({.content = decode_utf8(content),
                      .id = read_id(entry.is_object() ? entry.value("id", json()) : json(), content, path),
                      .special = flag("special", false),
                      .normalized = flag("normalized", true),
                      .single_word = flag("single_word", false),
                      .lstrip = flag("lstrip", false),
                      .rstrip = flag("rstrip", false)});
  }
  return tokens;
}

std::string read_special_token(const TokenizerFolder& folder, const char* key, const std::string& otherwise) {
  if (!folder.config.is_object()) return otherwise;
  const std::string path = folder.config_path();
  const auto found = folder.config.find(key);
  if (found == folder.config.end() || !found->is_object()) return json_value(folder.config, key, otherwise, path);
  return json_value(*found, "content", otherwise, path);
}

}  // namespace tessera::data
