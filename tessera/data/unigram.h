// A unigram language model over pieces (Kudo 2018, "Subword Regularization"): of all ways to cut a word into pieces the
// one whose log probabilities sum to most, found by Viterbi's algorithm. As the `tokenizers` package has it.
//
// Immutable; safe to use from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/data/string_map.h"
#include "tessera/data/word_model.h"

namespace tessera::data {

struct UnigramOptions {
  std::vector<std::pair<std::string, double>> pieces;  // with log probabilities; the place is the id
  std::optional<int32_t> unknown;                      // id of the piece for what has none
  bool byte_fallback = false;  // which is its bytes' pieces instead, "<0xE2>", where all are there
};

class Unigram final : public WordModel {
 public:
  // ErrorKind::kData where there is no piece, or the unknown one is none of them; `path`: the file, for the message.
  Unigram(UnigramOptions options, const std::string& path);

  // ErrorKind::kData where a character has no piece and the model no unknown one.
  void encode(std::string_view word, std::vector<int32_t>& ids) const override;
  std::vector<WordToken> encode_with_places(std::string_view word) const override;
  const StringMap<int32_t>& vocabulary() const override { return ids_; }

 private:
  // Pieces as a tree of bytes; the children of a node lie one after the other, by their byte.
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t byte = 0;
    int32_t id = -1;  // of the piece that ends here
  };
  void grow(const std::vector<std::pair<std::string_view, int32_t>>& sorted);
  const Node* child(const Node& node, char byte) const;
  // Calls visit(id, begin, end) of each token; those of a character's bytes all stand for the whole character.
  template <class Visit>
  void cut(std::string_view word, const Visit& visit) const;
  template <class Visit>
  void cut_unknown(std::string_view text, const Visit& visit) const;  // visit(id)

  UnigramOptions options_;
  std::string path_;
  StringMap<int32_t> ids_;
  std::vector<Node> nodes_;
  std::array<int32_t, 256> byte_ids_;
  double unknown_score_ = 0;
};

}  // namespace tessera::data
