// A unigram model from a tokenizer.json.
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/data/subword_tokenizer.h"
#include "tessera/data/tokenizer_files.h"
#include "tessera/data/unigram.h"

namespace tessera::data {
namespace {

using nlohmann::json;

UnigramOptions read_unigram(const json& model, const std::string& path) {
  UnigramOptions options{.byte_fallback = json_value(model, "byte_fallback", false, path)};
  const json vocabulary = model.value("vocab", json());
  for (const json& piece : vocabulary.is_array() ? vocabulary : json::array()) {
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      throw Error(ErrorKind::kData,
                  {"the vocabulary is not a list of pieces and their scores", path, "check the file, or get it again"});
    }
    options.pieces.emplace_back(piece[0].get<std::string>(), piece[1].get<double>());
  }
  if (const json unknown = model.value("unk_id", json()); !unknown.is_null())
    options.unknown = read_id(unknown, "unk_id", path);
  return options;
}

}  // namespace

std::unique_ptr<Tokenizer> make_unigram(const TokenizerFolder& folder) {
  const std::string path = folder.tokenizer_path();
  auto model = std::make_unique<Unigram>(read_unigram(folder.tokenizer.at("model"), path), path);
  PreTokenizer pre_tokenizer(folder.tokenizer.value("pre_tokenizer", json()), path);
  return std::make_unique<SubwordTokenizer>(parts_of_json(folder, std::move(pre_tokenizer), std::move(model)));
}

}  // namespace tessera::data
