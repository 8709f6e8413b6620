#include "tessera/data/tokenizers.h"

#include <fmt/format.h>

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"

namespace tessera::data {

namespace {

using nlohmann::json;

bool has_gpt2_files(const TokenizerFolder& folder) {
  return !folder.vocab_json_path.empty() && !folder.merges_path.empty();
}

TokenizerFolder open_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    throw Error(ErrorKind::kData, {"no such folder", path, "name the folder that holds the tokenizer"});
  }
  TokenizerFolder folder{.path = path, .tokenizer = nullptr, .config = nullptr};
  const auto present = [&](const std::string& file) {
    if (!fs::is_regular_file(file, ignored)) return false;
    folder.files.push_back(file);
    return true;
  };
  if (present(folder.tokenizer_path())) folder.tokenizer = read_json_file(folder.tokenizer_path());
  if (present(path + "/vocab.txt")) folder.vocab_path = path + "/vocab.txt";
  if (present(path + "/vocab.json")) folder.vocab_json_path = path + "/vocab.json";
  if (present(path + "/merges.txt")) folder.merges_path = path + "/merges.txt";
  for (const char* const name : {"/tokenizer.model", "/spiece.model"}) {
    if (present(path + name)) folder.sentencepiece_path = path + name;
  }
  if (folder.tokenizer.is_null() && folder.vocab_path.empty() && !has_gpt2_files(folder) &&
      folder.sentencepiece_path.empty()) {
    throw Error(ErrorKind::kData,
                {"the folder has no tokenizer", path,
                 "put a tokenizer.json, a tokenizer.model or spiece.model, a vocab.txt, or vocab.json "
                 "and merges.txt there"});
  }
  if (present(folder.config_path())) folder.config = read_json_file(folder.config_path());
  present(path + "/special_tokens_map.json");
  return folder;
}

}  // namespace

Registry<MakeTokenizer> tokenizers() {
  static constexpr Registry<MakeTokenizer>::Entry kEntries[] = {
      {"BPE", "byte-pair encoding (Sennrich et al. 2016)", make_bpe},
      {"Unigram", "the likeliest pieces (Kudo 2018)", make_unigram},
      {"WordPiece", "BERT's word pieces (Wu et al. 2016)", make_wordpiece},
  };
  return {"tokenizer model", kEntries};
}

int64_t required_id(std::optional<int64_t> id, const std::string& role) {
  if (id) return *id;
  throw Error(ErrorKind::kData, {fmt::format("the tokenizer has no {} token, which this task needs", role),
                                 "the tokenizer's folder", "use a tokenizer that has one, or another task"});
}

void require_vocabulary(const Tokenizer& tokenizer, const std::string& folder, int64_t tokens,
                        const std::string& given_by) {
  if (tokenizer.vocab_size() <= tokens) return;
  throw Error(ErrorKind::kData,
              {fmt::format("the tokenizer has {} tokens, but the model only {}", tokenizer.vocab_size(), tokens),
               fmt::format("{} and {}", folder, given_by), "use the tokenizer that belongs to the model"});
}

SampleFrame frame_with_eos(const Tokenizer& tokenizer) {
  SampleFrame frame = tokenizer.frame();
  const auto eos = tokenizer.special_ids().eos;
  if (eos && (frame.after.empty() || frame.after.back() != *eos)) frame.after.push_back(static_cast<int32_t>(*eos));
  return frame;
}

std::vector<TokenPlace> Tokenizer::encode_framed(std::string_view text) const {
  std::vector<TokenPlace> tokens;
  for (const int32_t id : frame().before) tokens.push_back({id, 0, 0});
  for (const TokenPlace& token : encode_with_offsets(text)) tokens.push_back(token);
  for (const int32_t id : frame().after) tokens.push_back({id, 0, 0});
  return tokens;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  const TokenizerFolder folder = open_folder(path);
  if (folder.tokenizer.is_null()) {
    if (!folder.sentencepiece_path.empty()) return make_sentencepiece(folder);
    return folder.vocab_path.empty() ? make_bpe(folder) : make_wordpiece(folder);
  }
  const json model = folder.tokenizer.value("model", json());
  const json type = model.is_object() ? model.value("type", json()) : json();
  if (!type.is_string()) {
    throw Error(ErrorKind::kData, {"it has no model with a type", folder.tokenizer_path(), ""});
  }
  MakeTokenizer make = nullptr;
  try {
    make = tokenizers().find(type.get<std::string>(), folder.tokenizer_path()).make;
  } catch (const Error& error) {
    throw Error(ErrorKind::kData, error.report());  // the name stands in a file, not on the command line
  }
  return make(folder);
}

}  // namespace tessera::data
