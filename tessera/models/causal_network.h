// Networks that predict each token from those before it: decoders of one stack, from embeddings over layers to a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/generative_network.h"
#include "tessera/models/model.h"
#include "tessera/models/vocabulary_layers.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/context_axis.h"
#include "tessera/nn/own_tokens.h"
#include "tessera/nn/rotary.h"
#include "tessera/nn/router.h"
#include "tessera/nn/shared_rows.h"

namespace tessera::models {

// The experts of a layer: where they are in it, and the part of them that a token goes through. No path: it has none.
struct LayerExperts {
  std::string path;
  double share = 1;
};

inline constexpr const char* kLastNorm = "the norm before the head";  // in errors and reports

// What goes from one decoder layer to the next.
struct DecoderState {
  at::Tensor hidden;       // of own tokens (nn/own_tokens.h)
  at::Tensor router_sums;  // of the layers so far (nn/router.h); undefined where no loss asks for them

  template <class F>
  void for_each_tensor(F f) const {
    f(hidden);
    if (router_sums.defined()) f(router_sums);
  }
};

// What a decoder layer reads. The cache is borrowed; null where nothing is kept.
struct DecoderInput {
  DecoderState state;
  nn::TokenShape tokens;
  nn::Rotary::Table turns;       // of the tokens' positions, for its kind of layer, where the model has rotary ones
  nn::AttentionPattern pattern;  // of whole rows
  std::shared_ptr<const nn::SharedRows> rows = {};  // where several ranks share each, all others being of own tokens
  nn::KeyValueCache* cache = nullptr;
  at::Tensor counted = {};  // (batch, length) bool: tokens that router_sums count; undefined: all

  template <class F>
  void for_each_tensor(F f) const {
    state.for_each_tensor(f);
  }
};

// (batch, length, heads, head size) each.
struct AttentionHeads {
  at::Tensor query, key, value;
};

// Attention among the input's rows, whole or shared. -> (batch, length, heads * head size)
at::Tensor decoder_attention(const AttentionHeads& heads, const DecoderInput& input, int64_t window,
                             const nn::AttentionOptions& options);

// The same with rotary positions: queries and keys are turned, and go through the cache where there is one. `window`:
// of nn::AttentionPattern. -> (batch, length, heads * head size)
at::Tensor rotary_attention(AttentionHeads heads, const DecoderInput& input, int64_t window,
                            const nn::AttentionOptions& options);

// One cache for each layer.
using Caches = std::vector<nn::KeyValueCache>;

class CausalNetwork : public Network, public GenerativeNetwork {
 public:
  // Reads "input_ids" and "labels" (batch, length), whose label at a position is the token there, as in transformers:
  // each is predicted from those before it, the first of a row by none. "position_ids" that begin again at 0 in the
  // middle of a row begin another document, which sees nothing of the one before.
  at::Tensor loss_sum(const NamedTensors& batch) override;

  // Of the same batch, the logarithm of the probability of each row's targets together: (batch) in fp32.
  at::Tensor log_probs(const NamedTensors& batch);

  // -> (batch, length, vocab). With caches: the tokens after those that they hold.
  at::Tensor logits(const NamedTensors& batch, Caches* caches = nullptr);

  // The logits of each row's last token alone: (batch, vocab).
  at::Tensor next_logits(const NamedTensors& batch, Caches* caches = nullptr);

  // Whether a token's keys are the same in a text of `one` tokens as in one of `other`: not where a scaling of rotary
  // positions goes by the length.
  virtual bool turns_alike(int64_t /*one*/, int64_t /*other*/) const { return true; }

  Caches make_caches() const { return Caches(layers()); }

  std::unique_ptr<Decoding> start(const PromptRows& prompts) override;

  void checkpoint_activations(bool on) override { checkpoints_activations_ = on; }
  void share_sequences(const nn::ContextAxis& axis) override { context_ = axis; }

  // The embeddings, each layer, the head with what stands before it.
  std::vector<Link> links() const override;
  std::vector<at::Tensor> run_links(size_t first, size_t end, const std::vector<at::Tensor>& entering,
                                    const NamedTensors& batch) override;

 protected:
  virtual size_t layers() const = 0;
  virtual const TokenEmbeddings& tokens() const = 0;
  virtual const torch::nn::Module* positions() const { return nullptr; }  // their embeddings, where they are learned
  virtual const torch::nn::Module& layer(size_t number) const = 0;
  virtual const torch::nn::Module& last_norm() const = 0;
  virtual at::Tensor embed(const at::Tensor& ids, const at::Tensor& positions) = 0;  // -> DecoderState::hidden

  // Of each kind of layer, by what its queries and keys are turned; nothing without rotary positions.
  virtual std::vector<nn::Rotary::Table> turns(const at::Tensor& positions) const = 0;
  virtual size_t kind_of(size_t /*layer*/) const { return 0; }

  // Of routers, what is added to the loss, over so many experts and layers that have them.
  struct Routers {
    nn::RouterLosses losses;
    int64_t experts = 0, layers = 0;
  };
  virtual Routers routers() const { return {}; }

  virtual LayerExperts experts_of(size_t /*layer*/) const { return {}; }

  virtual DecoderState run_layer(size_t layer, const DecoderInput& input) = 0;
  virtual at::Tensor normalized(const at::Tensor& hidden) = 0;  // after the last layer
  virtual LanguageHead& head() const = 0;

 private:
  struct Pass;
  Pass pass_over(const NamedTensors& batch, Caches* caches) const;
  at::Tensor share(Pass& pass, const at::Tensor& ids) const;  // ids of own tokens
  DecoderState run_layers(Pass& pass, size_t first, size_t end, DecoderState state);
  at::Tensor router_loss_sum(const at::Tensor& router_sums, const NamedTensors& batch) const;
  at::Tensor decode(const NamedTensors& batch, Caches* caches);      // -> of own tokens
  at::Tensor decode_all(const NamedTensors& batch, Caches* caches);  // -> (batch, length, hidden)
  nn::ContextAxis context_;
  bool checkpoints_activations_ = false;
};

// Lengths of the documents in rows of positions, of which each begins at 0; empty where each row is one.
// positions (rows, length) int64.
std::vector<int64_t> document_lengths(const at::Tensor& positions);

}  // namespace tessera::models
