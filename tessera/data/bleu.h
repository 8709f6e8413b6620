// How near texts come to their references: corpus BLEU (Papineni et al. 2002) as sacrebleu counts it by default (Post
// 2018): the tokenizer 13a, case as it is, n-grams of up to 4 tokens, exponential smoothing (Chen and Cherry 2014,
// method 3), one reference a text.
//
//   BleuTallies tallies;
//   for (…) tallies += bleu_tallies(hypothesis, reference);
//   tallies.score();   // 0 to 100
//
// Pure functions over UTF-8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

// Counts, which add up over texts and over ranks.
struct BleuTallies {
  static constexpr size_t kOrders = 4;

  std::array<int64_t, kOrders> ngrams{};   // of the texts: those of 1, 2, 3 and 4 tokens
  std::array<int64_t, kOrders> matches{};  // of them, those that their references have too, each as often as there
  int64_t tokens = 0;                      // of the texts
  int64_t reference_tokens = 0;

  BleuTallies& operator+=(const BleuTallies& more);
  double score() const;  // 0 where nothing matches
};

BleuTallies bleu_tallies(std::string_view text, std::string_view reference);

// As mteval-v13a.pl cuts a text: punctuation apart, but for what stands within numbers.
std::vector<std::string> bleu_tokens(std::string_view text);

}  // namespace tessera::data
