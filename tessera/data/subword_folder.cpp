// What a tokenizer's folder says beside its model.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/subword_tokenizer.h"
#include "tessera/data/tokenizer_files.h"
#include "tessera/data/unicode.h"

namespace tessera::data {

using nlohmann::json;

std::optional<int32_t> special_id(const std::string& token, const SubwordParts& parts) {
  const auto content = decode_utf8(token);
  for (const AddedToken& added : parts.added_tokens) {
    if (added.content == content) return added.id;
  }
  const auto found = parts.model->vocabulary().find(token);
  return found == parts.model->vocabulary().end() ? std::nullopt : std::optional(found->second);
}

void read_special_ids(const TokenizerFolder& folder, const std::string& otherwise, SubwordParts& parts) {
  constexpr const char* kHaveAnOther[] = {"bos_token", "eos_token", "unk_token"};
  for (const auto& [key, role] : kSpecialRoles) {
    const bool has_other =
        std::find(std::begin(kHaveAnOther), std::end(kHaveAnOther), std::string_view(key)) != std::end(kHaveAnOther);
    const std::string token = read_special_token(folder, key, has_other ? otherwise : "");
    if (token.empty()) continue;
    std::optional<int64_t>& id = parts.special_ids.*role;
    id = special_id(token, parts);
    if (id) continue;
    throw Error(ErrorKind::kData, {fmt::format("the vocabulary has no special token '{:.100}' ({})", token, key),
                                   folder.config_path(), "check the file, or get it again"});
  }
}

SubwordParts parts_of_json(const TokenizerFolder& folder, PreTokenizer pre_tokenizer,
                           std::unique_ptr<WordModel> model) {
  const std::string path = folder.tokenizer_path();
  const json& root = folder.tokenizer;
  SubwordParts parts{.normalize = make_normalizer(root.value("normalizer", json()), path),
                     .pre_tokenizer = std::move(pre_tokenizer),
                     .model = std::move(model),
                     .decode = make_decoder(root.value("decoder", json()), path),
                     .added_tokens = read_added_tokens(root.value("added_tokens", json::array()), path),
                     .special_ids = {},
                     .frame = make_frame(root.value("post_processor", json()), path),
                     .pair_frame = make_pair_frame(root.value("post_processor", json()), path),
                     .offset_trims = make_offset_trims(root.value("post_processor", json()), path),
                     .files = folder.files};
  read_special_ids(folder, "", parts);
  return parts;
}

}  // namespace tessera::data
