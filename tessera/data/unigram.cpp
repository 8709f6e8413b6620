#include "tessera/data/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

constexpr double kUnknownPenalty = 10;  // below the least likely piece, as SentencePiece has it

}  // namespace

Unigram::Unigram(UnigramOptions options, const std::string& path) : options_(std::move(options)), path_(path) {
  if (options_.pieces.empty())
    throw Error(ErrorKind::kData, {"the model has no vocabulary", path, "check the file, or get it again"});
  const auto count = static_cast<int32_t>(options_.pieces.size());
  if (options_.unknown && (*options_.unknown < 0 || *options_.unknown >= count)) {
    throw Error(ErrorKind::kData,
                {fmt::format("the unknown piece has the id {}, and there are {} pieces", *options_.unknown, count),
                 path, "check the file, or get it again"});
  }
  double least = std::numeric_limits<double>::infinity();
  for (int32_t id = 0; id < count; ++id) {
    const auto& [piece, score] = options_.pieces[static_cast<size_t>(id)];
    ids_.insert_or_assign(piece, id);
    least = std::min(least, score);
  }
  unknown_score_ = least - kUnknownPenalty;
  std::vector<std::pair<std::string_view, int32_t>> sorted(ids_.begin(), ids_.end());
  std::sort(sorted.begin(), sorted.end());
  grow(sorted);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(fmt::format("<0x{:02X}>", byte));
    byte_ids_[static_cast<size_t>(byte)] = found == ids_.end() ? -1 : found->second;
  }
}

void Unigram::grow(const std::vector<std::pair<std::string_view, int32_t>>& sorted) {
  // The pieces from `from` to `to` share their first `depth` bytes, which lead to the node.
  struct Part {
    size_t depth, from, to;
  };
  std::vector<Part> parts{{0, 0, sorted.size()}};  // of each node
  nodes_.emplace_back();
  for (size_t node = 0; node < nodes_.size(); ++node) {
    auto [depth, begin, to] = parts[node];
    if (sorted[begin].first.size() == depth) {
      if (depth > 0) nodes_[node].id = sorted[begin].second;
      ++begin;
    }
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < to) {
      const char byte = sorted[begin].first[depth];
      size_t end = begin;
      while (end < to && sorted[end].first[depth] == byte) ++end;
      parts.push_back({depth + 1, begin, end});
      nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
      ++nodes_[node].children;
      begin = end;
    }
  }
}

const Unigram::Node* Unigram::child(const Node& node, char byte) const {
  const Node* const begin = nodes_.data() + node.first_child;
  const Node* const end = begin + node.children;
  const auto wanted = static_cast<uint8_t>(byte);
  const Node* const found =
      std::lower_bound(begin, end, wanted, [](const Node& each, uint8_t value) { return each.byte < value; });
  return found == end || found->byte != wanted ? nullptr : found;
}

template <class Visit>
void Unigram::cut_unknown(std::string_view text, const Visit& visit) const {
  if (const auto spelt_out = ids_.find(text); spelt_out != ids_.end()) return visit(spelt_out->second);
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) >= 0; })) {
    for (const char byte : text) visit(id_of(byte));
    return;
  }
  if (!options_.unknown) {
    throw Error(ErrorKind::kData,
                {fmt::format("the tokenizer has no piece for '{:.40}', and none for what is unknown", text), path_,
                 "use a tokenizer that has one"});
  }
  visit(*options_.unknown);
}

template <class Visit>
void Unigram::cut(std::string_view word, const Visit& visit) const {
  // The best way to cut the word up to here: its score, and the piece that it ends with.
  struct Best {
    double score = 0;
    size_t begin = 0;
    int32_t id = -1;  // -1: unknown
    bool is_there = false;
  };
  std::vector<Best> best(word.size() + 1);
  best[0].is_there = true;
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
    if (!best[end].is_there || score > best[end].score) best[end] = {score, begin, id, true};
  };
  for (size_t begin = 0; begin < word.size();) {
    const size_t length = std::min(utf8_length(word[begin]), word.size() - begin);
    const double before = best[begin].score;
    bool has_character = false;
    const Node* node = nodes_.data();
    for (size_t end = begin; end < word.size();) {
      node = child(*node, word[end]);
      if (node == nullptr) break;
      ++end;
      if (node->id < 0) continue;
      offer(begin, end, before + options_.pieces[static_cast<size_t>(node->id)].second, node->id);
      has_character = has_character || end == begin + length;
    }
    if (!has_character) offer(begin, begin + length, before + unknown_score_, -1);
    begin += length;
  }

  std::vector<const Best*> pieces;
  for (size_t end = word.size(); end > 0; end = best[end].begin) pieces.push_back(&best[end]);
  const auto end_of = [&](auto piece) { return static_cast<size_t>(*piece - best.data()); };
  const auto is_unknown = [&](const Best& piece) { return piece.id < 0 || piece.id == options_.unknown; };
  for (auto piece = pieces.rbegin(); piece != pieces.rend();) {
    if (!is_unknown(**piece)) {
      visit((*piece)->id, (*piece)->begin, end_of(piece));
      ++piece;
      continue;
    }
    const size_t begin = (*piece)->begin;  // neighbours that are unknown are one
    while (piece != pieces.rend() && is_unknown(**piece)) ++piece;
    const size_t end = piece == pieces.rend() ? word.size() : (*piece)->begin;
    cut_unknown(word.substr(begin, end - begin), [&](int32_t id) { visit(id, begin, end); });
  }
}

void Unigram::encode(std::string_view word, std::vector<int32_t>& ids) const {
  cut(word, [&](int32_t id, size_t, size_t) { ids.push_back(id); });
}

std::vector<WordToken> Unigram::encode_with_places(std::string_view word) const {
  std::vector<WordToken> tokens;
  cut(word, [&](int32_t id, size_t begin, size_t end) { tokens.push_back({id, begin, end}); });
  return tokens;
}

}  // namespace tessera::data
