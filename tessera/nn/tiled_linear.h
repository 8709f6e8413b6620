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
#pragma once

#include <memory>
#include <vector>

#include "tessera/nn/layers.h"
#include "tessera/nn/unit_module.h"

namespace tessera::nn {

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

}  // namespace tessera::nn
