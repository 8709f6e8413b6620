#include "tessera/data/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

constexpr size_t kShort = 48;  // symbols: up to there looking through all pairs is faster than a queue

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Bpe::Bpe(BpeOptions options, const std::string& path) : options_(std::move(options)), byte_ids_(256, -1) {
  const auto id_of = [&](const std::string& token, const char* what) {
    const auto found = options_.vocabulary.find(token);
    if (found != options_.vocabulary.end()) return found->second;
    throw Error(ErrorKind::kData, {fmt::format("{}, '{:.100}', is not in the vocabulary", what, token), path,
                                   "check the file, or get it again"});
  };
  int32_t rank = 0;
  for (const auto& [left, right] : options_.merges) {
    const std::string& prefix = options_.inner_prefix;
    const std::string joined = left + (right.starts_with(prefix) ? right.substr(prefix.size()) : right);
    merges_.insert_or_assign(pair_of(id_of(left, "a token of a merge"), id_of(right, "a token of a merge")),
                             Merge{rank++, id_of(joined, "what a merge makes")});
  }
  options_.merges = {};
  if (!options_.unknown.empty()) unknown_ = id_of(options_.unknown, "the unknown token");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token =
        options_.of_bytes ? std::string(1, static_cast<char>(byte)) : fmt::format("<0x{:02X}>", byte);
    const auto found = options_.vocabulary.find(token);
    if (found != options_.vocabulary.end()) byte_ids_[static_cast<size_t>(byte)] = found->second;
  }
}

const Bpe::Merge* Bpe::merge_of(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

bool Bpe::add_bytes(std::string_view character, Symbols& symbols) const {
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char byte) { return id_of(byte) < 0; })) return false;
  for (const char byte : character) symbols.add(id_of(byte), 1);
  return true;
}

void Bpe::add_characters(std::string_view word, Symbols& symbols) const {
  bool after_unknown = false;
  for (size_t at = 0; at < word.size();) {
    const size_t length = options_.of_bytes ? 1 : std::min(utf8_length(word[at]), word.size() - at);
    const std::string_view character = word.substr(at, length);
    std::string token = at == 0 ? std::string(character) : options_.inner_prefix + std::string(character);
    at += length;
    if (at == word.size()) token += options_.end_suffix;
    const auto found = options_.vocabulary.find(token);
    if (found != options_.vocabulary.end()) {
      symbols.add(found->second, length);
    } else if (!options_.byte_fallback || !add_bytes(character, symbols)) {
      const bool fused = after_unknown && options_.fuse_unknown;
      if (unknown_ && !fused) symbols.add(*unknown_, length);
      if (unknown_ && fused && symbols.lengths != nullptr) symbols.lengths->back() += length;
      after_unknown = true;
      continue;
    }
    after_unknown = false;
  }
}

void Bpe::merge_short(Symbols& symbols) const {
  std::vector<int32_t>& ids = symbols.ids;
  while (ids.size() > 1) {
    const Merge* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge* const merge = merge_of(ids[i], ids[i + 1]);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        place = i;
      }
    }
    if (best == nullptr) return;
    ids[place] = best->id;
    const auto next = static_cast<std::ptrdiff_t>(place) + 1;
    ids.erase(ids.begin() + next);
    if (symbols.lengths == nullptr) continue;
    (*symbols.lengths)[place] += (*symbols.lengths)[place + 1];
    symbols.lengths->erase(symbols.lengths->begin() + next);
  }
}

// The same in O(n log n): pairs wait in a queue by rank, then by place; those that are no longer there are passed over.
void Bpe::merge_long(Symbols& result) const {
  struct Symbol {
    int32_t id;
    int64_t before, after;  // -1: none
  };
  std::vector<Symbol> symbols;
  std::vector<int32_t>& ids = result.ids;
  const auto count = static_cast<int64_t>(ids.size());
  for (int64_t i = 0; i < count; ++i) {
    symbols.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  using Waiting = std::tuple<int32_t, int64_t, int32_t>;  // rank, place of the left one, what it becomes
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> queue;
  const auto at = [&](int64_t place) -> Symbol& { return symbols[static_cast<size_t>(place)]; };
  const auto add = [&](int64_t left) {
    if (left < 0 || at(left).after < 0) return;
    if (const Merge* const merge = merge_of(at(left).id, at(at(left).after).id))
      queue.emplace(merge->rank, left, merge->id);
  };
  for (int64_t i = 0; i < count; ++i) add(i);
  while (!queue.empty()) {
    const auto [rank, place, id] = queue.top();
    queue.pop();
    Symbol& left = at(place);
    if (left.id < 0 || left.after < 0) continue;
    Symbol& right = at(left.after);
    const Merge* const merge = merge_of(left.id, right.id);
    if (merge == nullptr || merge->id != id) continue;
    left.id = id;
    right.id = -1;
    left.after = right.after;
    if (left.after >= 0) at(left.after).before = place;
    add(left.before);
    add(place);
  }
  ids.clear();
  std::vector<size_t> lengths;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].id >= 0) ids.push_back(symbols[i].id);
    if (result.lengths == nullptr) continue;
    if (symbols[i].id >= 0) lengths.push_back(0);
    lengths.back() += (*result.lengths)[i];  // what was merged lies behind the one that it became part of
  }
  if (result.lengths != nullptr) *result.lengths = std::move(lengths);
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    const auto found = options_.vocabulary.find(word);
    if (found != options_.vocabulary.end()) return ids.push_back(found->second);
  }
  const Symbols symbols = symbols_of(word, nullptr);
  ids.insert(ids.end(), symbols.ids.begin(), symbols.ids.end());
}

std::vector<WordToken> Bpe::encode_with_places(std::string_view word) const {
  if (options_.ignore_merges) {
    const auto found = options_.vocabulary.find(word);
    if (found != options_.vocabulary.end()) return {{found->second, 0, word.size()}};
  }
  std::vector<size_t> lengths;
  const Symbols symbols = symbols_of(word, &lengths);
  std::vector<WordToken> tokens;
  size_t begin = 0;
  for (size_t i = 0; i < lengths.size(); begin += lengths[i++]) {
    tokens.push_back({symbols.ids[i], begin, begin + lengths[i]});
  }
  return tokens;
}

Bpe::Symbols Bpe::symbols_of(std::string_view word, std::vector<size_t>* lengths) const {
  Symbols symbols{.lengths = lengths};
  add_characters(word, symbols);
  symbols.ids.size() <= kShort ? merge_short(symbols) : merge_long(symbols);
  return symbols;
}

}  // namespace tessera::data
