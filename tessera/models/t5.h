// T5 (Raffel et al. 2020): an encoder that reads a text, a decoder that writes another. Its positions are a bias of the
// attention by how far two tokens are apart; its norms have no mean and no bias. T5 1.1 (gated) is the same class.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/models/block_cut.h"
#include "tessera/models/generative_network.h"
#include "tessera/models/model.h"
#include "tessera/models/vocabulary_layers.h"
#include "tessera/nn/activations.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/own_tokens.h"
#include "tessera/nn/unit_module.h"

namespace tessera::models {

struct T5Config {
  int64_t vocab_size = 0;
  int64_t d_model = 0;
  int64_t d_kv = 0;
  int64_t d_ff = 0;
  int64_t num_layers = 0;  // of the encoder
  int64_t num_decoder_layers = 0;
  int64_t num_heads = 0;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double dropout_rate = 0.1;
  double layer_norm_epsilon = 1e-6;
  double initializer_factor = 1;
  int64_t pad_token_id = 0;
  int64_t decoder_start_token_id = 0;
  bool gated = false;                   // T5 1.1: two matrices before the third
  nn::Activation activation = nullptr;  // between them
  bool tie_word_embeddings = true;
  bool scale_decoder_outputs = true;  // by 1 / sqrt(d_model) before the output layer
};

// The bias of attention by distance, for all blocks of a stack: a table of buckets, the nearer the finer (section 2.1).
class T5PositionBias : public nn::UnitModule<T5PositionBias>, public nn::HoldsParts {
 public:
  T5PositionBias(const T5Config& config, bool is_decoder, const nn::TensorAxis& axis);
  at::Tensor forward(const at::Tensor& places);  // (queries, keys) int64, key - query -> (1, heads, queries, keys)
  void specify(const std::string& parameter, layout::ParamSpec& spec) const override;

  at::Tensor weight;  // (buckets, this rank's heads)

 private:
  int64_t buckets_, max_distance_;
  bool is_decoder_;
  nn::Cut heads_;
};

// What a block of the decoder keeps of a text that is being written.
struct T5BlockCache {
  nn::KeyValueCache own;  // of the tokens so far
  at::Tensor key, value;  // of the encoder's output, (batch, length, heads, d_kv); undefined before the first pass
  void reorder(const at::Tensor& rows);  // as nn::KeyValueCache
};

// What a block reads. The cache is borrowed; null where nothing is kept.
struct T5BlockInput {
  at::Tensor hidden;  // of own tokens (nn/own_tokens.h)
  nn::TokenShape tokens;
  at::Tensor bias;  // T5PositionBias's
  nn::AttentionPattern pattern;

  at::Tensor memory;               // the encoder's output, of all its tokens; undefined in the encoder
  nn::AttentionPattern of_memory;  // which of its tokens are there
  T5BlockCache* cache = nullptr;

  template <class F>
  void for_each_tensor(F f) const {
    f(hidden);
    f(bias);
    if (memory.defined()) f(memory);
  }
};

class T5Block : public nn::UnitModule<T5Block> {
 public:
  // `name`: of the block, for errors and reports.
  T5Block(const T5Config& config, bool is_decoder, const std::string& name, const nn::TensorAxis& axis);
  at::Tensor forward(const T5BlockInput& input);  // -> of own tokens

 private:
  struct Attention {
    std::shared_ptr<nn::Linear> q, k, v, o;
    std::shared_ptr<nn::RmsNorm> norm;
  };
  struct Seen {  // what the queries look at: (batch, keys, heads, d_kv) each
    at::Tensor key, value;
    at::Tensor bias;  // nn::AttentionOptions::bias
  };
  Attention add_attention(int number, const char* name);
  at::Tensor split(const nn::Linear& linear, const at::Tensor& of) const;  // into heads
  Seen written_so_far(const at::Tensor& normal, const T5BlockInput& input) const;
  Seen memory_of(const T5BlockInput& input) const;
  at::Tensor attend(const Attention& by, const at::Tensor& normal, const Seen& seen,
                    const nn::AttentionPattern& pattern, const nn::TokenShape& tokens) const;
  at::Tensor feed_forward(const at::Tensor& hidden, const nn::TokenShape& tokens) const;
  at::Tensor dropout(const at::Tensor& own, const nn::TokenShape& tokens) const;

  T5Config config_;
  BlockCut cut_;
  Attention self_, cross_;                        // the latter of decoders
  std::shared_ptr<nn::Linear> gate_, up_, down_;  // gate_ alone where it is not gated
  std::shared_ptr<nn::RmsNorm> feed_forward_norm_;
};

class T5ForConditionalGeneration : public Network, public GenerativeNetwork {
 public:
  // Over a tensor axis, attention and its bias are cut by heads, the feed-forward by features, the vocabulary by words.
  explicit T5ForConditionalGeneration(const T5Config& config, const nn::TensorAxis& axis = {});

  // Reads "input_ids" and, where some are padding, "attention_mask" (batch, length), and "labels" (batch, target
  // length), the text to be written.
  at::Tensor loss_sum(const NamedTensors& batch) override;
  at::Tensor logits(const NamedTensors& batch);  // -> (batch, target length, vocab)

  // The encoder's embeddings, its blocks, the decoder's blocks, the first with its embeddings, the head. What leaves a
  // block of the decoder but the last is the encoder's output beside its own.
  std::vector<Link> links() const override;
  std::vector<at::Tensor> run_links(size_t first, size_t end, const std::vector<at::Tensor>& entering,
                                    const NamedTensors& batch) override;
  void checkpoint_activations(bool on) override { checkpoints_activations_ = on; }

  // Prompts are what the encoder reads.
  std::unique_ptr<Decoding> start(const PromptRows& prompts) override;

  // What the decoder reads of the texts.
  struct Memory {
    at::Tensor states;  // (batch, length, d_model)
    nn::AttentionPattern pattern;
  };
  Memory encode(const at::Tensor& ids, const at::Tensor& present);  // the latter undefined without padding

  // Of the tokens after those that the caches hold, one for each block: what follows the last, (batch, vocab).
  at::Tensor next_logits(const at::Tensor& written, const Memory& memory, std::vector<T5BlockCache>& caches);

 private:
  struct Stack {
    std::shared_ptr<T5PositionBias> bias;
    std::vector<std::shared_ptr<T5Block>> blocks;
    std::shared_ptr<nn::RmsNorm> norm;
  };
  Stack add_stack(const std::string& name, int64_t layers, bool is_decoder);
  at::Tensor dropout(const at::Tensor& own, const nn::TokenShape& tokens) const;
  at::Tensor embed(const at::Tensor& ids) { return dropout((*shared_)(ids), nn::tokens_of(ids)); }

  // The stack's blocks in [first, end).
  at::Tensor run(Stack& stack, size_t first, size_t end, T5BlockInput input,
                 std::vector<T5BlockCache>* caches = nullptr);
  at::Tensor encoded(const at::Tensor& hidden, const nn::TokenShape& tokens) {
    return dropout(encoder_.norm->forward(hidden), tokens);
  }
  at::Tensor decoded(const at::Tensor& hidden, const nn::TokenShape& tokens);             // as the head takes it
  at::Tensor for_decoder(const at::Tensor& encoded, const nn::TokenShape& tokens) const;  // -> Memory::states

  // The decoder's output, scaled: (batch, length, d_model).
  at::Tensor decode(const at::Tensor& written, const Memory& memory, std::vector<T5BlockCache>* caches = nullptr);
  at::Tensor written_before(const at::Tensor& labels) const;  // each of them

  T5Config config_;
  nn::TensorAxis axis_;
  std::shared_ptr<TokenEmbeddings> shared_;
  Stack encoder_, decoder_;
  std::shared_ptr<LanguageHead> head_;
  bool checkpoints_activations_ = false;
};

// ErrorKind::kData for a config.json that describes none.
T5Config read_t5_config(const ModelConfig& file);

}  // namespace tessera::models
