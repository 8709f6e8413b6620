// Tokenizers whose folder has a SentencePiece model (Kudo and Richardson 2018) and no tokenizer.json: tokenizer.model
// of Llama 2 and InternLM2, spiece.model of T5. The sentencepiece library reads and applies it; what transformers keeps
// beside it (added tokens, T5's extra ids, what is put around a text) is done here.
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_value.h"
#include "tessera/data/added_tokens.h"
#include "tessera/data/tokenizer_files.h"
#include "tessera/data/tokenizers.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

using nlohmann::json;
using sentencepiece::SentencePieceProcessor;

constexpr int64_t kMostExtraIds = 10'000;

// Which of transformers' classes the folder is for decides what stands around a text.
struct Family {
  bool begins, ends;  // with bos, with eos
  int64_t extra_ids;  // "<extra_id_0>", …, behind the model's pieces, the last one first
};

Family family_of(const TokenizerFolder& folder) {
  const std::string path = folder.config_path();
  const bool is_t5_file = folder.sentencepiece_path.ends_with("spiece.model");
  std::string name =
      json_value(folder.config, "tokenizer_class", std::string(is_t5_file ? "T5Tokenizer" : "LlamaTokenizer"), path);
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  const auto flag = [&](const char* key, bool otherwise) { return json_value(folder.config, key, otherwise, path); };
  if (name == "T5Tokenizer")
    return {.begins = false, .ends = true, .extra_ids = json_value<int64_t>(folder.config, "extra_ids", 100, path)};
  for (const char* const known :
       {"LlamaTokenizer", "InternLM2Tokenizer", "GemmaTokenizer", "CodeLlamaTokenizer", "PreTrainedTokenizer"}) {
    if (name == known)
      return {.begins = flag("add_bos_token", true), .ends = flag("add_eos_token", false), .extra_ids = 0};
  }
  throw Error(ErrorKind::kData,
              {fmt::format("the tokenizer class '{:.100}' is not supported with a SentencePiece model", name), path,
               "put a tokenizer.json into the folder: transformers' save_pretrained writes one"});
}

// "added_tokens_decoder" of a tokenizer_config.json: {"32000": {"content": …, "special": …}, …}
std::vector<AddedToken> added_tokens_of(const TokenizerFolder& folder) {
  json list = json::array();
  const json added = folder.config.is_object() ? folder.config.value("added_tokens_decoder", json()) : json();
  if (!added.is_object()) return {};
  for (const auto& [id, token] : added.items()) {
    const bool is_number = !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || !token.is_object()) {
      throw Error(ErrorKind::kData,
                  {fmt::format("'added_tokens_decoder' names '{:.100}', which is no id of a token", id),
                   folder.config_path(), "check the file, or get it again"});
    }
    list.push_back(token);
    list.back()["id"] = std::stoi(id);
  }
  return read_added_tokens(list, folder.config_path());
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const TokenizerFolder& folder) : files_(folder.files) {
    const Family family = family_of(folder);
    if (!model_.LoadFromSerializedProto(read_input_file(folder.sentencepiece_path)).ok()) {
      throw Error(ErrorKind::kData, {"it is no SentencePiece model", folder.sentencepiece_path, "get the file again"});
    }
    vocab_size_ = model_.GetPieceSize();
    if (family.extra_ids < 0 || family.extra_ids > kMostExtraIds) {
      throw Error(ErrorKind::kData, {fmt::format("'extra_ids' is {}", family.extra_ids), folder.config_path(),
                                     "check the file, or get it again"});
    }
    std::vector<AddedToken> added = added_tokens_of(folder);
    for (int64_t i = 0; i < family.extra_ids; ++i) {
      const auto id = static_cast<int32_t>(model_.GetPieceSize() + family.extra_ids - 1 - i);
      const bool is_known =
          std::any_of(added.begin(), added.end(), [&](const AddedToken& token) { return token.id == id; });
      if (!is_known)
        added.push_back({.content = decode_utf8(fmt::format("<extra_id_{}>", i)),
                         .id = id,
                         .special = true,
                         .lstrip = true,
                         .rstrip = true});
    }
    read_roles(folder, added);
    for (const AddedToken& token : added) {
      vocab_size_ = std::max<int64_t>(vocab_size_, token.id + 1);
      append_utf8(token.content, texts_[token.id]);
      if (token.special) special_.insert(token.id);
    }
    added_ = AddedTokens(std::move(added));
    if (family.begins && ids_.bos) frame_.before.push_back(static_cast<int32_t>(*ids_.bos));
    if (family.ends && ids_.eos) frame_.after.push_back(static_cast<int32_t>(*ids_.eos));
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    std::string bytes;
    added_.split(decode_utf8(text), [&](std::u32string_view piece, std::optional<int32_t> added) {
      if (added) return ids.push_back(*added);
      bytes.clear();
      append_utf8(piece, bytes);
      std::vector<int> own;
      TESSERA_INVARIANT(model_.Encode(bytes, &own).ok());
      ids.insert(ids.end(), own.begin(), own.end());
    });
    return ids;
  }

  std::vector<TokenPlace> encode_with_offsets(std::string_view text) const override {
    std::vector<TokenPlace> tokens;
    const std::vector<size_t> starts = character_starts(text);
    size_t begin = 0;  // in characters
    added_.split(decode_utf8(text), [&](std::u32string_view piece, std::optional<int32_t> added) {
      const size_t end = begin + piece.size();
      if (added) {
        tokens.push_back({*added, starts[begin], starts[end]});
      } else {
        std::string bytes;
        append_utf8(piece, bytes);
        // The library counts in bytes of what it is given, in which what is no UTF-8 has been made characters.
        std::map<size_t, size_t> place_of;
        for (size_t i = begin; const size_t start : character_starts(bytes)) place_of[start] = starts[i++];
        const sentencepiece::ImmutableSentencePieceText own = model_.EncodeAsImmutableProto(bytes);
        for (const auto& each : own.pieces()) {
          tokens.push_back({static_cast<int32_t>(each.id()), place_of.at(each.begin()), place_of.at(each.end())});
        }
      }
      begin = end;
    });
    return tokens;
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    std::vector<int> pieces;
    const auto end_pieces = [&] {
      std::string part;
      TESSERA_INVARIANT(model_.Decode(pieces, &part).ok());
      text += part;
      pieces.clear();
    };
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size_ || (skip_special && is_special(id))) continue;
      const auto added = texts_.find(id);
      if (added == texts_.end() && id < model_.GetPieceSize()) {
        pieces.push_back(id);
      } else if (added != texts_.end()) {
        end_pieces();
        text += added->second;
      }
    }
    end_pieces();
    return text;
  }

  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialIds& special_ids() const override { return ids_; }
  bool is_special(int32_t id) const override { return special_.contains(id); }
  const SampleFrame& frame() const override { return frame_; }
  std::vector<std::string> files() const override { return files_; }

 private:
  // Those that tokenizer_config.json names, else those of the model. Each is cut out of a text whole.
  void read_roles(const TokenizerFolder& folder, std::vector<AddedToken>& added) {
    const std::pair<std::string_view, int> own[] = {{"bos_token", model_.bos_id()},
                                                    {"eos_token", model_.eos_id()},
                                                    {"unk_token", model_.unk_id()},
                                                    {"pad_token", model_.pad_id()}};
    const auto of_model = [&](std::string_view key) {
      for (const auto& [known, id] : own) {
        if (known == key && id >= 0) return model_.IdToPiece(id);
      }
      return std::string();
    };
    for (const auto& [key, role] : kSpecialRoles) {
      std::optional<int64_t>& id = ids_.*role;
      const std::string text = read_special_token(folder, key, of_model(key));
      if (text.empty()) continue;
      const std::u32string content = decode_utf8(text);
      const auto known =
          std::find_if(added.begin(), added.end(), [&](const AddedToken& token) { return token.content == content; });
      if (known != added.end()) {
        id = known->id;
      } else if (const int piece = model_.PieceToId(text); model_.IdToPiece(piece) == text) {
        id = piece;
        added.push_back({.content = content, .id = piece, .special = true});
      } else {
        throw Error(ErrorKind::kData, {fmt::format("the vocabulary has no special token '{:.100}' ({})", text, key),
                                       folder.config_path(), "check the file, or get it again"});
      }
      special_.insert(static_cast<int32_t>(*id));
    }
  }

  SentencePieceProcessor model_;
  AddedTokens added_;
  std::map<int32_t, std::string> texts_;  // of added tokens
  std::set<int32_t> special_;
  SpecialIds ids_;
  SampleFrame frame_;
  int64_t vocab_size_ = 0;
  std::vector<std::string> files_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece(const TokenizerFolder& folder) {
  return std::make_unique<SentencePieceTokenizer>(folder);
}

}  // namespace tessera::data
