// The feed-forward of a decoder's layers: gated matrices, or a mixture of experts, each of which is such.
//
// Matrices are registered in the layer, so that they are of its unit and by its names.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/block_cut.h"
#include "tessera/nn/expert_axis.h"
#include "tessera/nn/own_tokens.h"
#include "tessera/nn/router.h"

namespace tessera::models {

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // Of own tokens (nn/own_tokens.h) -> the same.
  virtual at::Tensor operator()(const at::Tensor& x, const nn::TokenShape& tokens) const = 0;
};

// Below a path of the layer.
struct GatedNames {
  const char *gate, *up, *down;
};

// The three matrices: of x of all tokens, down(silu(gate(x)) * up(x)).
struct GatedMatrices {
  std::shared_ptr<nn::Linear> gate, up, down;

  at::Tensor operator()(const at::Tensor& x) const;
};

// Its features cut as `cut` says.
class GatedFeedForward final : public FeedForward {
 public:
  GatedFeedForward(torch::nn::Module& layer, const GatedNames& names, const BlockCut& cut, int64_t hidden, bool bias);
  at::Tensor operator()(const at::Tensor& x, const nn::TokenShape& tokens) const override;

 private:
  BlockCut cut_;
  GatedMatrices matrices_;
};

// Where a layer has the parts of its mixture. `shared`, or nullptr: an expert that all tokens go through besides, times
// sigmoid(shared_gate(x)).
struct MixtureNames {
  const char *router, *experts;
  GatedNames of_expert;
  const char *shared = nullptr, *shared_gate = nullptr;
};

// For each token, the sum of some experts' results (nn/expert_dispatch.h). Over a tensor axis each rank makes its part
// of them, of all tokens, and of the mixture there is one sum.
class ExpertMixture final : public FeedForward {
 public:
  // `of_shared`: the cut of the shared expert's features, null without one.
  ExpertMixture(torch::nn::Module& layer, const MixtureNames& names, const nn::RouterOptions& options,
                const BlockCut& of_expert, const BlockCut* of_shared, int64_t hidden);
  at::Tensor operator()(const at::Tensor& x, const nn::TokenShape& tokens) const override;

  // The same, and the sums of router_losses: of the tokens that are `counted`, (batch, length) bool; undefined: all.
  struct WithSums {
    at::Tensor result, sums;
  };
  WithSums with_sums(const at::Tensor& x, const nn::TokenShape& tokens, const at::Tensor& counted) const;

  const std::string& path() const { return experts_path_; }  // of all experts, in the layer
  double share_of_token() const;                             // the part of them that a token goes through

  // From now on each rank of the axis has its own experts alone; the others' are taken out of the layer.
  // ErrorKind::kConfig where they do not go round.
  void share(const nn::ExpertAxis& axis, torch::nn::Module& layer);

 private:
  nn::Routing routed(const at::Tensor& all) const;
  at::Tensor mixed(const at::Tensor& all, const nn::Routing& routing) const;  // -> own tokens

  nn::TensorAxis tensor_axis_;
  nn::ExpertAxis axis_;
  std::string experts_path_;
  std::shared_ptr<nn::Router> router_;
  std::vector<GatedMatrices> experts_;  // this rank's
  std::optional<GatedMatrices> shared_;
  std::shared_ptr<nn::Linear> shared_gate_;
};

}  // namespace tessera::models
