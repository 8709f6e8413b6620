// The layers that common transformers are made of. Their parameters are declared: they have a shape but no storage
// until an engine, or materialize(), gives them some and fills it, so a model larger than memory can be described.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/unit_module.h"

namespace tessera::layout {
struct ParamSpec;
}

namespace tessera::nn {

class TensorAxis;  // tensor_axis.h
struct LinearCut;  // …
struct Nf4Weight;  // nf4_product.h

// The parameter of a quantized layer beside its weight.
inline constexpr const char* kNestedScales = "weight_nested";

// fp32, requires grad, no bytes.
at::Tensor declared_parameter(std::vector<int64_t> shape);

// input weight^T + bias (undefined: none), in the input's dtype. Where a CPU has no fast products of 16-bit
// numbers (kernels/matrix_products.h) they are computed in fp32 and rounded; what is kept for backward stays 16 bits
// wide.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

// Of low-rank adaptation (Hu et al. 2021): what a layer adds is scaled by alpha / rank, of rsLoRA (Kalajdzievski 2023)
// by alpha / sqrt(rank).
struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  bool rank_stabilized = false;  // rsLoRA
  bool dora = false;             // Liu et al. 2024: also the lengths of the weight's rows are trained

  double scale() const;
};

class LoraBranch;  // lora.h

// A module whose parameters may be parts of the model's, of which other ranks have the rest.
class HoldsParts {
 public:
  virtual ~HoldsParts() = default;

  // Completes what the whole of this parameter is, its shape and where it is cut. `parameter`: its name in the module.
  virtual void specify(const std::string& parameter, layout::ParamSpec& spec) const = 0;
};

// A layer beside whose frozen matrix two thin ones can be trained: its parameters "lora_A.weight" (rank, in) and
// "lora_B.weight" (out, rank), and with DoRA "lora_magnitude_vector" (out), as in the package PEFT.
class Adaptable {
 public:
  virtual ~Adaptable() = default;
  virtual void adapt(const LoraOptions& options) = 0;
  virtual void enable_adapter(bool on) = 0;             // off: forward is that of the matrix alone; on at first
  virtual bool is_transposed() const { return false; }  // its weight is (in, out)

  // The matrix itself as NF4 (nf4_product.h): its parameter "weight", declared until now, becomes declared bytes, which
  // are frozen, and "weight_nested" joins it. ErrorKind::kConfig where it is cut inside a block.
  virtual void quantize() = 0;
  virtual bool is_quantized() const = 0;
  virtual std::vector<int64_t> weight_shape() const = 0;  // as files have it, also where quantized or cut
  virtual int64_t weight_numel() const = 0;               // of what is here, also where quantized
};

// How files have the weight of a linear layer.
enum class WeightForm {
  kOutIn,  // (out, in), as torch::nn::Linear
  kInOut,  // (in, out), as transformers' Conv1D
};

// y = x weight^T + bias; weight (out_features, in_features), or as its form says; bias (out_features). Of what is cut,
// this rank's part.
class Linear : public torch::nn::Module, public Adaptable, public HoldsParts {
 public:
  Linear(int64_t in_features, int64_t out_features, bool with_bias = true);
  // The features are the whole's.
  Linear(int64_t in_features, int64_t out_features, bool with_bias, LinearCut cut,
         WeightForm form = WeightForm::kOutIn);
  ~Linear() override;
  at::Tensor forward(const at::Tensor& input) const;  // (…, in_features) -> (…, out_features)
  void adapt(const LoraOptions& options) override;
  void enable_adapter(bool on) override;
  void train(bool on = true) override;
  void quantize() override;
  bool is_transposed() const override { return form_ == WeightForm::kInOut; }
  bool is_quantized() const override { return quantized_; }
  std::vector<int64_t> weight_shape() const override;
  int64_t weight_numel() const override { return own_.in * own_.out; }
  void specify(const std::string& parameter, layout::ParamSpec& spec) const override;

  // No forward pass calls it twice, so a product is all of the weight's gradient, and may be written where that goes
  // (kernels/gradient_place.h).
  void set_called_once() { is_called_once_ = true; }

  at::Tensor weight;         // bytes where it is quantized, of blocks of (out, in)
  at::Tensor bias;           // undefined without
  at::Tensor weight_nested;  // … and what their scales are scaled by, of the whole weight

 private:
  struct Features {
    int64_t in, out;
  };

  Linear(Features own, bool with_bias, WeightForm form);
  Features whole() const;
  Nf4Weight quantized_weight() const;
  void specify_blocks(layout::ParamSpec& spec) const;    // of a quantized weight that is cut
  at::Tensor out_in(const at::Tensor& parameter) const;  // the weight, or bytes as they are
  at::Tensor product(const at::Tensor& input, const at::Tensor& with_bias) const;
  at::Tensor with_weight(const at::Tensor& input, const at::Tensor& with_bias) const;
  at::Tensor summed(const at::Tensor& own) const;  // of what is cut by its inputs, each rank's product

  Features own_;  // this rank's
  WeightForm form_ = WeightForm::kOutIn;
  std::unique_ptr<const LinearCut> cut_;       // null where it is whole
  std::unique_ptr<const TensorAxis> sharers_;  // the ranks that hold the same outputs, where there are several, or
                                               // have them of some tokens each
  bool quantized_ = false;
  bool is_called_once_ = false;
  std::unique_ptr<LoraBranch> lora_;  // null without
};

// Rows of weight (count, width); the row `padding_index` gets no gradient (none when negative). `axis`: over whose
// ranks are the tokens whose ids it is given (own_tokens.h).
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t count, int64_t width, int64_t padding_index = -1);
  Embedding(int64_t count, int64_t width, int64_t padding_index, const TensorAxis& axis);
  at::Tensor forward(const at::Tensor& ids) const;  // (…) int64 -> (…, width)

  at::Tensor weight;

 private:
  int64_t padding_index_;
  std::shared_ptr<const TensorAxis> axis_;  // null: each rank sees the whole gradient
};

// Normalises over the last dimension; Ba et al. 2016. `axis`: over whose ranks are the tokens that it normalizes
// (own_tokens.h).
class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t width, double eps);
  LayerNorm(int64_t width, double eps, const TensorAxis& axis);
  at::Tensor forward(const at::Tensor& input) const;

  at::Tensor weight;
  at::Tensor bias;

 private:
  int64_t width_;
  double eps_;
  std::shared_ptr<const TensorAxis> axis_;  // null: each rank sees the whole gradient
};

// Divides by the root of the mean square over the last dimension (Zhang and Sennrich 2019), as transformers does it: in
// fp32, rounded to the input's dtype, then times the weight. `around_one`, Gemma's way: times 1 + weight, all in fp32,
// rounded at the end.
class RmsNorm : public torch::nn::Module {
 public:
  // `axis`: over whose ranks are the heads or tokens that it normalizes, so that each sees a part of the weight's
  // gradient.
  RmsNorm(int64_t width, double eps, bool around_one, const TensorAxis& axis);
  RmsNorm(int64_t width, double eps, bool around_one = false);
  at::Tensor forward(const at::Tensor& input) const;  // (…, width) -> the same

  at::Tensor weight;

 private:
  double eps_;
  bool around_one_;
  std::shared_ptr<const TensorAxis> axis_;  // null: each rank sees the whole gradient
};

// Memory-centric tiling (Rajbhandari et al. 2021, "ZeRO-Infinity", section 5.1.3): a Linear cut into tiles that are
// computed one after another, for layers that would not fit as a whole.
//
//   weight   [ tile 0.0 | tile 0.1 ]     out_splits rows and in_splits columns of tiles, cut as evenly as possible,
//            [ tile 1.0 | tile 1.1 ]     larger ones first
//
// Each tile is a unit (unit_module.h): at stage 3 one tile at a time is gathered. Its parameters are
// "linears.<row>.<column>.weight" and, in the last column, "bias", as in DeepSpeed's TiledLinear. Outputs and gradients
// are those of the whole layer but for rounding; to the bit with one column whose tiles have a multiple of 64 rows,
// because BLAS computes what does not fill its registers in another way.
struct TiledLinearOptions {
  bool with_bias = true;
  int64_t in_splits = 1;   // from 1 to in_features
  int64_t out_splits = 1;  // from 1 to out_features
};

class TiledLinear : public torch::nn::Module {
 public:
  // Parameters are declared, as those of Linear. ErrorKind::kUsage when the splits do not fit.
  TiledLinear(int64_t in_features, int64_t out_features, const TiledLinearOptions& options = {});

  // (…, in_features) -> (…, out_features)
  at::Tensor forward(const at::Tensor& input) const;

  // For an input that is split already (DeepSpeed's input_is_already_split), and outputs that stay so
  // (combine_out_splits = false): one tensor for each column in, one for each row out.
  std::vector<at::Tensor> forward_split(const std::vector<at::Tensor>& inputs) const;
  std::vector<at::Tensor> split(const at::Tensor& input) const;       // views, along the last dimension
  static at::Tensor combine(const std::vector<at::Tensor>& outputs);  // concatenates along the last dimension

  // The values of a Linear of the same features, with a bias if this has one. Before an engine has taken the
  // parameters.
  void copy_params_from(const Linear& linear);

  class Tile : public UnitModule<Tile> {
   public:
    Tile(int64_t in_features, int64_t out_features, bool with_bias);
    at::Tensor forward(const at::Tensor& input) const;

    at::Tensor weight;
    at::Tensor bias;  // undefined without
  };

 private:
  std::vector<int64_t> in_sizes_;   // of the columns
  std::vector<int64_t> out_sizes_;  // of the rows
  bool with_bias_;
  std::vector<std::vector<std::shared_ptr<Tile>>> tiles_;  // [row][column]
};

// Gives every declared parameter of the tree bytes of its own and has `fill` write them; a parameter with several names
// is filled once, under the first. For use without an engine.
void materialize(torch::nn::Module& model, const std::function<void(const std::string& name, at::Tensor value)>& fill,
                 at::ScalarType dtype = at::kFloat);

}  // namespace tessera::nn
