#include "tessera/data/bleu.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

bool is_number(char c) { return c >= '0' && c <= '9'; }
bool is_stop(char c) { return c == '.' || c == ','; }

// The ASCII punctuation that always stands alone: [\{-\~\[-\` -\&\(-\+\:-\@\/].
bool stands_alone(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
         (c >= ':' && c <= '@') || c == '/';
}

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
}

std::string without_spaces_at_the_end(std::string_view text) {
  std::u32string characters = decode_utf8(text);
  while (!characters.empty() && is_python_space(characters.back())) characters.pop_back();
  std::string kept;
  append_utf8(characters, kept);
  return kept;
}

// Python's re.sub for a pattern of two neighbouring bytes: where the first is found, `write` gives both anew and the
// search goes on behind them. The patterns are of ASCII or of anything but it, so bytes serve for characters.
template <class Matches, class Write>
std::string with_pairs(const std::string& text, Matches matches, Write write) {
  std::string result;
  size_t at = 0;
  while (at < text.size()) {
    const bool found = at + 1 < text.size() && matches(text[at], text[at + 1]);
    if (found) write(result, text[at], text[at + 1]);
    if (!found) result += text[at];
    at += found ? 2 : 1;
  }
  return result;
}

std::vector<std::string> bleu_words(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  for (const char32_t c : decode_utf8(text)) {
    const bool space = is_python_space(c);
    if (!space && !in_word) words.emplace_back();
    if (!space) append_utf8(std::u32string_view(&c, 1), words.back());
    in_word = !space;
  }
  return words;
}

// How often each sequence of that many tokens comes.
std::map<std::vector<std::string>, int64_t> ngrams_of(std::span<const std::string> tokens, size_t order) {
  std::map<std::vector<std::string>, int64_t> counts;
  for (size_t first = 0; first + order <= tokens.size(); ++first) {
    const auto part = tokens.subspan(first, order);
    ++counts[std::vector<std::string>(part.begin(), part.end())];
  }
  return counts;
}

}  // namespace

// The order of the replacements is sacrebleu's (tokenizers/tokenizer_13a.py, tokenizer_re.py).
std::vector<std::string> bleu_tokens(std::string_view given) {
  std::string text = without_spaces_at_the_end(given);
  for (const auto& [what, with] :
       {std::pair("<skipped>", ""), std::pair("-\n", ""), std::pair("\n", " "), std::pair("&quot;", "\""),
        std::pair("&amp;", "&"), std::pair("&lt;", "<"), std::pair("&gt;", ">")}) {
    replace_all(text, what, with);
  }
  std::string apart = " ";
  for (const char c : text) {
    if (stands_alone(c)) {
      apart += {' ', c, ' '};
    } else {
      apart += c;
    }
  }
  apart += ' ';
  apart = with_pairs(
      apart, [](char a, char b) { return !is_number(a) && is_stop(b); },
      [](std::string& to, char a, char b) {
        to += {a, ' ', b, ' '};
      });
  apart = with_pairs(
      apart, [](char a, char b) { return is_stop(a) && !is_number(b); },
      [](std::string& to, char a, char b) {
        to += {' ', a, ' ', b};
      });
  apart = with_pairs(
      apart, [](char a, char b) { return is_number(a) && b == '-'; },
      [](std::string& to, char a, char b) {
        to += {a, ' ', b, ' '};
      });
  return bleu_words(apart);
}

BleuTallies bleu_tallies(std::string_view text, std::string_view reference) {
  const std::vector<std::string> tokens = bleu_tokens(text), wanted = bleu_tokens(reference);
  BleuTallies tallies{.tokens = static_cast<int64_t>(tokens.size()),
                      .reference_tokens = static_cast<int64_t>(wanted.size())};
  for (size_t order = 1; order <= BleuTallies::kOrders; ++order) {
    const auto there = ngrams_of(wanted, order);
    for (const auto& [ngram, count] : ngrams_of(tokens, order)) {
      tallies.ngrams[order - 1] += count;
      const auto found = there.find(ngram);
      if (found != there.end()) tallies.matches[order - 1] += std::min(count, found->second);
    }
  }
  return tallies;
}

BleuTallies& BleuTallies::operator+=(const BleuTallies& more) {
  for (size_t i = 0; i < kOrders; ++i) {
    ngrams[i] += more.ngrams[i];
    matches[i] += more.matches[i];
  }
  tokens += more.tokens;
  reference_tokens += more.reference_tokens;
  return *this;
}

double BleuTallies::score() const {
  if (std::all_of(matches.begin(), matches.end(), [](int64_t count) { return count == 0; })) return 0;
  double logarithms = 0, smoothing = 1;
  for (size_t i = 0; i < kOrders; ++i) {
    if (ngrams[i] == 0) return 0;  // no text is as long
    const auto all = static_cast<double>(ngrams[i]);
    if (matches[i] == 0) smoothing *= 2;
    const double precision = matches[i] == 0 ? 100 / (smoothing * all) : 100 * static_cast<double>(matches[i]) / all;
    logarithms += std::log(precision);
  }
  const bool short_of = tokens < reference_tokens;
  const double brevity =
      short_of ? std::exp(1 - static_cast<double>(reference_tokens) / static_cast<double>(tokens)) : 1;
  return brevity * std::exp(logarithms / static_cast<double>(kOrders));
}

}  // namespace tessera::data
