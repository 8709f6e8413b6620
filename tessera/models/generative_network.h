// What writes texts: which token may follow those so far, of several texts at once. generation.h chooses among them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/nn/attention.h"

namespace tessera::models {

// A text whose keys and values are kept for the next one, as the turns of a conversation go on from each other: of the
// tokens with which both begin nothing is computed again. Of one row, and of one network with the weights that it has.
struct KeptText {
  std::vector<int32_t> tokens;            // whose keys and values are in the caches
  std::vector<nn::KeyValueCache> caches;  // of each layer; after an error they may hold more
  bool is_alike = true;                   // all are turned by their positions as in one pass (Rotary::turns_alike)
  int64_t computed = 0;                   // positions of all passes so far
};

struct PromptRows {
  std::vector<std::vector<int32_t>> rows;  // at least one, of at least one token each; lengths may differ
  at::Device device = at::kCPU;            // where the network is

  // Of an encoder-decoder, the token before the first that it writes; nothing: config.json's.
  std::optional<int64_t> decoder_start = std::nullopt;

  // Of one row of a decoder alone: begins with what is kept, and becomes what is. Borrowed by the Decoding; null:
  // nothing.
  KeptText* kept = nullptr;
};

// Rows of tokens, of which shorter ones are padded.
struct PaddedRows {
  at::Tensor ids;      // (rows, longest) int64; 0 where a row has none
  at::Tensor present;  // the same, bool; undefined where all rows are of one length
};

// `at_the_front`: padding stands before a row's tokens, so that all rows end at one place.
PaddedRows padded(const PromptRows& prompts, bool at_the_front);

// Texts that are being written, a row each, with what is kept of their tokens. Used by one thread, without gradients.
class Decoding {
 public:
  virtual ~Decoding() = default;

  // One forward pass: the logits (rows, vocab) of what follows each row, in the network's dtype and on its device.
  // `chosen`: the token with which each row went on after the last pass; empty at the first, which reads the prompts.
  virtual at::Tensor next_logits(const std::vector<int64_t>& chosen) = 0;

  // Row i goes on as row rows[i] was, so there may be more or fewer of them: for beam search, between two passes.
  virtual void reorder(const std::vector<int64_t>& rows) = 0;

  // The texts are written, and later passes, which run the same modules, are for the sake of ranks whose texts are not:
  // their logits mean nothing, and they compute as little as they can.
  virtual void idle() = 0;
};

class GenerativeNetwork {
 public:
  virtual ~GenerativeNetwork() = default;

  // Borrows the network, which must hold its weights and not be training. ErrorKind::kData for a decoder_start that is
  // no token of the vocabulary.
  virtual std::unique_ptr<Decoding> start(const PromptRows& prompts) = 0;
};

}  // namespace tessera::models
