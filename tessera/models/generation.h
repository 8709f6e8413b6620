// Tokens after a prompt, one after the other, over a cache of keys and values: the most likely (greedy), drawn
// (Holtzman et al. 2019, "nucleus sampling"), or by beam search; as transformers' generate() chooses them. Of an
// encoder-decoder the prompt is what the encoder reads, and the tokens are those that the decoder writes.
//
//   generate(network, tokenizer->encode("Once"), {.max_new_tokens = 50, .stop_tokens = {eos}});
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/models/generative_network.h"

namespace tessera::models {

struct GenerationOptions {
  int64_t max_new_tokens = 128;
  std::vector<int32_t> stop_tokens = {};                // any of them ends the text, and is its last token
  std::optional<int64_t> decoder_start = std::nullopt;  // PromptRows
  at::Device device = at::kCPU;                         // where the network is

  // Drawn from the softmax of logits / temperature over the top_k most likely tokens, of those the fewest that together
  // have a probability of top_p. 0: not drawn, the most likely.
  double temperature = 0;
  int64_t top_k = 0;  // 0: of all
  double top_p = 1;
  uint64_t seed = 42;

  // More than 1: beam search; nothing is drawn, and on_token hears of the whole text at its end.
  int64_t beams = 1;
  double length_penalty = 1;  // a text's score is its log-probability / (its tokens ^ this)

  std::function<void(size_t row, int32_t token)> on_token = nullptr;

  // Of one prompt of a decoder alone, without beams: see PromptRows.
  KeptText* kept = nullptr;

  // For ranks that write together and must run as many forward passes: called after each with whether this one's rows
  // have ended, it says whether those of all have. Until then this one's go on, idle. For beam search: of one prompt.
  std::function<bool(bool ended)> all_ended = nullptr;
};

// ErrorKind::kUsage for a prompt without a token, or options that make no sense.
void check_generation(const std::vector<std::vector<int32_t>>& prompts, const GenerationOptions& options);

// The new tokens of each row, each alone what it is among others. `prompts`: at least one, each of at least one token.
// The network must hold its weights, and not be training. ErrorKind::kUsage as check_generation.
std::vector<std::vector<int32_t>> generate_rows(GenerativeNetwork& network,
                                                const std::vector<std::vector<int32_t>>& prompts,
                                                const GenerationOptions& options);

// Of one prompt.
std::vector<int32_t> generate(GenerativeNetwork& network, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options);

}  // namespace tessera::models
