// The feed-forward of a decoder's layers: gated matrices, or a mixture of experts, each of which is such.
//
// Matrices are registered in the layer, so that they are of its unit and by its names.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/block_cut.h"
#include "tessera/nn/expert_axis.h"
#include "tessera/nn/router.h"

namespace tessera::models {

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // (…, hidden) -> the same. What it is given is whole on every tensor rank, and so is what it gives.
  virtual at::Tensor operator()(const at::Tensor& x) const = 0;
};

// Below a path of the layer.
struct GatedNames {
  const char *gate, *up, *down;
};

// down(silu(gate(x)) * up(x)), its features cut as `cut` says.
class GatedFeedForward final : public FeedForward {
 public:
  GatedFeedForward(torch::nn::Module& layer, const std::string& path, const GatedNames& names, const BlockCut& cut,
                   int64_t hidden, bool bias = false);
  at::Tensor operator()(const at::Tensor& x) const override;

 private:
  BlockCut cut_;
  std::shared_ptr<nn::Linear> gate_, up_, down_;
};

// Where a layer has the parts of its mixture. `shared`, or nullptr: an expert that all tokens go through besides, times
// sigmoid(shared_gate(x)).
struct MixtureNames {
  const char *router, *experts;
  GatedNames of_expert;
  const char *shared = nullptr, *shared_gate = nullptr;
};

// For each token, the sum of some experts' results (nn/expert_dispatch.h).
class ExpertMixture final : public FeedForward {
 public:
  // `of_shared`: the cut of the shared expert's features, null without one.
  ExpertMixture(torch::nn::Module& layer, const MixtureNames& names, const nn::RouterOptions& options,
                const BlockCut& of_expert, const BlockCut* of_shared, int64_t hidden);
  at::Tensor operator()(const at::Tensor& x) const override { return mixed(x, routed(x)); }

  // The same, and the sums of router_losses: of the tokens that are `counted`, (batch, length) bool; undefined: all.
  struct WithSums {
    at::Tensor result, sums;
  };
  WithSums with_sums(const at::Tensor& x, const at::Tensor& counted) const;

  const std::string& path() const { return experts_path_; }  // of all experts, in the layer
  double share_of_token() const;                             // the part of them that a token goes through

  // From now on each rank of the axis has its own experts alone; the others' are taken out of the layer.
  // ErrorKind::kConfig where they do not go round.
  void share(const nn::ExpertAxis& axis, torch::nn::Module& layer);

 private:
  nn::Routing routed(const at::Tensor& x) const;
  at::Tensor mixed(const at::Tensor& x, const nn::Routing& routing) const;

  nn::ExpertAxis axis_;
  std::string experts_path_;
  std::shared_ptr<nn::Router> router_;
  std::vector<GatedFeedForward> experts_;  // this rank's
  std::unique_ptr<GatedFeedForward> shared_;
  std::shared_ptr<nn::Linear> shared_gate_;
};

}  // namespace tessera::models
