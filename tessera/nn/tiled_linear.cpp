#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/split_with_sizes.h>
#include <fmt/format.h>

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/layout/consecutive_parts.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/module_path.h"

namespace tessera::nn {
namespace {

std::vector<int64_t> even_sizes(int64_t features, int64_t splits, const char* option) {
  if (splits < 1 || splits > features) {
    throw Error(ErrorKind::kUsage, {fmt::format("{} is {} for {}", option, splits, count_of(features, "feature")),
                                    "nn::TiledLinear", fmt::format("use a number from 1 to {}", features)});
  }
  std::vector<int64_t> sizes = layout::uniform_bounds(features, splits);
  std::adjacent_difference(sizes.begin(), sizes.end(), sizes.begin());
  sizes.erase(sizes.begin());
  return sizes;
}

void require_shape(const at::Tensor& tensor, const std::vector<int64_t>& shape, const char* name) {
  if (tensor.defined() && tensor.sizes().equals(shape)) return;
  throw Error(ErrorKind::kUsage,
              {fmt::format("the linear's {} does not have this layer's shape", name), "nn::TiledLinear",
               "copy from a layer with the same features, and a bias if this one has one, before initialize()"});
}

void set_values(at::Tensor& parameter, const at::Tensor& values) {
  require_shape(parameter, values.sizes().vec(), "parameter");
  if (parameter.storage().nbytes() == 0) {
    parameter.set_data(values.contiguous().clone());
  } else {
    parameter.copy_(values);
  }
}

}  // namespace

TiledLinear::Tile::Tile(int64_t in_features, int64_t out_features, bool with_bias) {
  weight = register_parameter("weight", declared_parameter({out_features, in_features}));
  if (with_bias) bias = register_parameter("bias", declared_parameter({out_features}));
}

at::Tensor TiledLinear::Tile::forward(const at::Tensor& input) const { return linear(input, weight, bias); }

TiledLinear::TiledLinear(int64_t in_features, int64_t out_features, const TiledLinearOptions& options)
    : in_sizes_(even_sizes(in_features, options.in_splits, "in_splits")),
      out_sizes_(even_sizes(out_features, options.out_splits, "out_splits")),
      with_bias_(options.with_bias) {
  for (size_t row = 0; row < out_sizes_.size(); ++row) {
    auto& tiles = tiles_.emplace_back();
    for (size_t column = 0; column < in_sizes_.size(); ++column) {
      const bool last = column + 1 == in_sizes_.size();
      auto tile = std::make_shared<Tile>(in_sizes_[column], out_sizes_[row], options.with_bias && last);
      tiles.push_back(add(*this, fmt::format("linears.{}.{}", row, column), std::move(tile)));
    }
  }
}

std::vector<at::Tensor> TiledLinear::split(const at::Tensor& input) const {
  if (in_sizes_.size() == 1) return {input};
  return at::split_with_sizes(input, in_sizes_, -1);
}

at::Tensor TiledLinear::combine(const std::vector<at::Tensor>& outputs) {
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs, -1);
}

std::vector<at::Tensor> TiledLinear::forward_split(const std::vector<at::Tensor>& inputs) const {
  if (inputs.size() != in_sizes_.size()) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("{} given for in_splits of {}", count_of(static_cast<int64_t>(inputs.size()), "input"),
                             in_sizes_.size()),
                 "nn::TiledLinear", "pass one input per split"});
  }
  std::vector<at::Tensor> outputs;
  for (const auto& tiles : tiles_) {
    at::Tensor sum = (*tiles[0])(inputs[0]);
    for (size_t column = 1; column < tiles.size(); ++column) sum = sum + (*tiles[column])(inputs[column]);
    outputs.push_back(sum);
  }
  return outputs;
}

at::Tensor TiledLinear::forward(const at::Tensor& input) const { return combine(forward_split(split(input))); }

void TiledLinear::copy_params_from(const Linear& linear) {
  const at::NoGradGuard no_grad;
  int64_t in_features = 0, out_features = 0;
  for (const int64_t size : in_sizes_) in_features += size;
  for (const int64_t size : out_sizes_) out_features += size;
  require_shape(linear.weight, {out_features, in_features}, "weight");
  if (with_bias_) require_shape(linear.bias, {out_features}, "bias");
  int64_t first_row = 0;
  for (size_t row = 0; row < tiles_.size(); ++row) {
    int64_t first_column = 0;
    for (size_t column = 0; column < tiles_[row].size(); ++column) {
      Tile& tile = *tiles_[row][column];
      const at::Tensor rows = linear.weight.detach().narrow(0, first_row, out_sizes_[row]);
      set_values(tile.weight, rows.narrow(1, first_column, in_sizes_[column]));
      if (tile.bias.defined()) set_values(tile.bias, linear.bias.detach().narrow(0, first_row, out_sizes_[row]));
      first_column += in_sizes_[column];
    }
    first_row += out_sizes_[row];
  }
}

}  // namespace tessera::nn
