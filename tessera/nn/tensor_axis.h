// Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"): the ranks over which each matrix of a model is cut, and what
// a layer needs of them.
//
//   x = axis.into_parts(x)                       up: cut by its outputs, so each rank has some features of h
//   y = axis.out_of_parts(down(silu(up(x))))     down: cut by its inputs; y is whole on every rank
//
// Sums are the group's, in rank order and fp32, rounded once, so a run has the same bits every time. Every rank of the
// axis runs the same layers in the same order, forward and backward. An axis of one rank cuts and exchanges nothing, so
// a network without tensor parallelism is the same code.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/layout/mesh_shape.h"
#include "tessera/layout/param_spec.h"
#include "tessera/layout/range.h"

namespace tessera::comm {
class Group;
}

namespace tessera::nn {

// Of some dimension, the part of each rank of an axis. Copies are cheap enough for constructors; layers keep what they
// need.
struct Cut {
  std::vector<layout::Range> parts;  // of each rank of the axis; one, the whole, where the axis has one rank
  int rank = 0;                      // this one's place

  const layout::Range& own() const { return parts[static_cast<size_t>(rank)]; }
  int64_t whole() const { return parts.back().end; }
  Cut times(int64_t each) const;  // of as many elements for each item: of heads, their features
  layout::Shard shard(int dim, const std::string& axis = layout::kTensorAxis) const;
};

class TensorAxis {
 public:
  TensorAxis() = default;  // of one rank
  explicit TensorAxis(const std::shared_ptr<comm::Group>& group);

  // For arithmetic alone: a network over it can be counted, but not run.
  static TensorAxis of_size(int size);

  int rank() const;
  int size() const { return size_; }
  comm::Group& group() const;  // of an axis of several ranks that is not for arithmetic alone
  const std::string& name() const { return name_; }

  // The same, whose exchanges are called this in errors and reports, e.g. "layers.3.mlp".
  TensorAxis called(const std::string& name) const;

  // The same, asked for by this key of a configuration: where errors of sizes are.
  TensorAxis asked_by(const std::string& key) const;

  // The same, over which features are cut between blocks of so many, where they are whole blocks and enough of them.
  TensorAxis in_blocks(int64_t of) const;

  // `items` over the ranks; where they do not divide, the first ranks have one more. ErrorKind::kConfig where there are
  // fewer than ranks; `what` names them, in the plural.
  Cut cut(int64_t items, const std::string& what) const;
  Cut cut_features(int64_t features, const std::string& what) const;  // … as in_blocks() says

  // Attention heads over the ranks, so that each has the key heads that its own heads look at. Where there are fewer
  // key heads than ranks, several ranks hold the same one (whose weights go through `sharers`). ErrorKind::kConfig,
  // with the nearest that fit, where the heads do not go round.
  struct Heads {
    Cut query, key;
  };
  Heads cut_heads(int64_t heads, int64_t key_heads) const;

  // x as it is; backward: the sum of the ranks' gradients, each of which comes of that rank's own part.
  at::Tensor into_parts(const at::Tensor& x) const;

  // The sum of the ranks' x; backward: the gradient as it is, which is the same on all ranks.
  at::Tensor out_of_parts(const at::Tensor& x) const;

  // A parameter that all ranks hold whole, and of which each uses what concerns its own part, or its own tokens
  // (own_tokens.h): undefined stays so.
  at::Tensor shared_parameter(const at::Tensor& parameter) const;

  // What all ranks compute alike of what they share: backward: a rank's share of the gradient, where those of all are
  // added up.
  at::Tensor counted_once(const at::Tensor& x) const;

  // Parts of the last dimension, put together; backward: this rank's part of the gradient, which is the same on all.
  at::Tensor gathered(const at::Tensor& own, const Cut& cut) const;

  // The ranks that hold the same part as this one.
  TensorAxis sharers(const Cut& cut) const;

  // Without gradients. The ranks' tensors of one shape: (ranks, …). And parts of the last dimension, put together.
  at::Tensor of_all(const at::Tensor& own) const;
  at::Tensor joined(const at::Tensor& own, const Cut& cut) const;

 private:
  int size_ = 1;
  std::shared_ptr<comm::Group> group_;  // null: one rank, or for arithmetic alone
  std::string name_ = "the tensor axis";
  std::string key_ = "parallel.tensor";
  int64_t block_ = 1;
};

// While it lives, random numbers of a device are this rank's own: for dropout of what is cut. Before and after, ranks
// that draw alike have the same state, so what all have is dropped alike. `on`: false: nothing happens.
class PartRandomness {
 public:
  PartRandomness(const TensorAxis& axis, bool on, at::Device device);
  ~PartRandomness();
  PartRandomness(const PartRandomness&) = delete;
  PartRandomness& operator=(const PartRandomness&) = delete;

 private:
  at::Generator generator_;  // undefined: nothing to restore
  at::Tensor state_;
};

// Over the ranks of a tensor axis, a linear layer is cut by one of two: each rank computes some of the outputs, of
// inputs that have come through into_parts(); or has some of the inputs, and the outputs are whole after a sum over the
// ranks. By neither: it is whole, and each rank uses what it gives for its own part alone (see shared_parameter).
struct LinearCut {
  // Of what is cut by its inputs.
  enum class Sum {
    kWhole,      // on every rank
    kOwnTokens,  // out_of_cut_layers (own_tokens.h)
    kLeft,       // each rank's own is left as it is, for sums of it; without a bias
  };

  TensorAxis axis;
  std::optional<Cut> outputs, inputs;
  Sum sum = Sum::kWhole;
  int64_t stacked = 1;  // matrices in one, whose outputs follow each other and are each cut as `outputs`
};

}  // namespace tessera::nn
