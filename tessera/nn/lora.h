// Low-rank adaptation (Hu et al. 2021): beside the frozen matrix W of a linear layer two thin ones are trained,
//
//   y = x W^T + s · dropout(x) A^T B^T      A (rank, in), B (out, rank); s = alpha / rank
//
// rsLoRA (Kalajdzievski 2023) scales by alpha / sqrt(rank) instead. DoRA (Liu et al. 2024) also trains the length m of
// each row of the sum, which keeps only its direction:
//
//   y = x W'^T      W' = m · (W + s B A) / ||W + s B A||     m (out), norms of rows, which have no gradient
//   (section 4.3)
//
// Where W is kept as NF4 (nf4_product.h), it is here what the layer computes with: W made whole again, in x's dtype.
//
// Its dropout is PEFT's: of the input of what is added to x W^T, x (W' - W)^T, so in W's product there too.
//
// A and B are "lora_A.weight" and "lora_B.weight" of the layer, m is "lora_magnitude_vector": as in the files of the
// package PEFT.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "tessera/nn/layers.h"

namespace tessera::nn {

inline constexpr const char* kLoraMagnitude = "lora_magnitude_vector";

// The layer that a branch belongs to.
struct AdaptedLayer {
  at::Tensor weight;                                           // (out, in), or the part that is here
  at::Tensor bias;                                             // (out), undefined: none
  std::function<at::Tensor(const at::Tensor& input)> product;  // with the weight alone
  bool training = false;
  std::function<at::Tensor(at::ScalarType dtype)> dequantized{};  // empty: the weight is as it is; else it is bytes
  const TensorAxis* over_inputs = nullptr;                        // by whose ranks the inputs are cut
  const TensorAxis* sharers = nullptr;                            // the ranks that have the same outputs
};

// A and B of one layer, and m.
class LoraBranch {
 public:
  // Registers them with the layer. Their values are the caller's to fill: B is zero at first (Hu et al., section 4.1),
  // m the norms of W's rows.
  LoraBranch(torch::nn::Module& layer, std::shared_ptr<Linear> a, std::shared_ptr<Linear> b,
             const LoraOptions& options);

  // What the layer gives with it, (…, out), of its input (…, in) and what it gives alone.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& alone, const AdaptedLayer& layer) const;

  // Off: the layer gives what it gives alone.
  void set_enabled(bool on) { is_enabled_ = on; }

  // Norms are kept where a forward is neither for training nor records gradients: when weights change, forget them.
  void forget_norms() { norms_.reset(); }

 private:
  at::Tensor dropped_input(const at::Tensor& input, const AdaptedLayer& layer) const;
  at::Tensor norms_of(const AdaptedLayer& layer, at::ScalarType dtype) const;

  std::shared_ptr<Linear> a_, b_;
  at::Tensor magnitude_;  // undefined but for DoRA
  double scale_, dropout_;
  bool is_enabled_ = true;
  mutable at::Tensor norms_;
};

// The norms of the rows of weight + scale · b a: (out) in fp32. A few rows at a time, so that little more memory is
// needed than they take.
at::Tensor adapted_row_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, double scale);

inline bool is_lora_magnitude(std::string_view name) { return name.ends_with(".lora_magnitude_vector"); }

inline bool is_lora_parameter(std::string_view name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight") || is_lora_magnitude(name);
}

}  // namespace tessera::nn
