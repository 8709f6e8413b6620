// What the readers of tokenizer folders share: ids, added tokens and the special tokens of tokenizer_config.json.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/added_tokens.h"
#include "tessera/data/tokenizers.h"

namespace tessera::data {

// How tokenizer_config.json calls the tokens with a role.
struct SpecialRole {
  const char* key;
  std::optional<int64_t> SpecialIds::*id;
};
inline constexpr SpecialRole kSpecialRoles[] = {{"bos_token", &SpecialIds::bos},  {"eos_token", &SpecialIds::eos},
                                                {"unk_token", &SpecialIds::unk},  {"pad_token", &SpecialIds::pad},
                                                {"cls_token", &SpecialIds::cls},  {"sep_token", &SpecialIds::sep},
                                                {"mask_token", &SpecialIds::mask}};

// ErrorKind::kData where it is no whole number of at least 0, or larger than that of any vocabulary.
int32_t read_id(const nlohmann::json& id, const std::string& token, const std::string& path);

// "added_tokens" of a tokenizer.json.
std::vector<AddedToken> read_added_tokens(const nlohmann::json& list, const std::string& path);

// tokenizer_config.json writes a special token as "[CLS]" or as {"content": "[CLS]", …}; `otherwise` where it does not
// name one under the key.
std::string read_special_token(const TokenizerFolder& folder, const char* key, const std::string& otherwise);

}  // namespace tessera::data
