#include "tessera/data/added_tokens.h"

#include <algorithm>
#include <utility>

#include "tessera/data/unicode.h"

namespace tessera::data {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (const AddedToken& token : tokens_) {
    if (first_characters_.find(token.content[0]) == std::u32string::npos) first_characters_ += token.content[0];
  }
}

const AddedToken* AddedTokens::match_at(std::u32string_view text, size_t position) const {
  for (const AddedToken& token : tokens_) {
    if (text.substr(position, token.content.size()) == token.content) return &token;
  }
  return nullptr;
}

void AddedTokens::split(std::u32string_view text, const Visitor& visit) const {
  size_t done = 0;  // everything before has been visited
  size_t position = 0;
  while ((position = text.find_first_of(first_characters_, position)) != std::u32string_view::npos) {
    const AddedToken* token = match_at(text, position);
    if (token == nullptr) {
      ++position;
      continue;
    }
    size_t start = position;
    size_t stop = start + token->content.size();
    position = stop;
    if (token->single_word &&
        ((start > 0 && is_word_character(text[start - 1])) || (stop < text.size() && is_word_character(text[stop])))) {
      continue;
    }
    if (token->lstrip) {
      while (start > 0 && is_whitespace(text[start - 1])) --start;
      start = std::max(start, done);
    }
    if (token->rstrip) {
      while (stop < text.size() && is_whitespace(text[stop])) ++stop;
    }
    if (done < start) visit(text.substr(done, start - done), std::nullopt);
    visit(text.substr(start, stop - start), token->id);
    done = stop;
  }
  if (done < text.size()) visit(text.substr(done), std::nullopt);
}

}  // namespace tessera::data
