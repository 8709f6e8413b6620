// Rotary position embeddings (Su et al. 2021, "RoFormer"), with the scalings by which models that were trained on short
// texts take longer ones. The formulas are those of transformers' ROPE_INIT_FUNCTIONS.
//
//   const Rotary rotary({.width = 64, .theta = 10000});
//   const Rotary::Table table = rotary.table(positions);   // once for all layers
//   query = rotate(query, table);
//
// Immutable; safe to use from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::nn {

struct RotaryOptions {
  enum class Scaling {
    kNone,
    kLinear,    // positions / factor (Chen et al. 2023)
    kDynamic,   // a larger theta for longer inputs ("NTK-aware")
    kYarn,      // Peng et al. 2023
    kLongrope,  // Ding et al. 2024: a factor for each frequency, others beyond the original length
    kLlama3,    // three bands of wavelengths: kept, blended, divided by the factor
  };

  int64_t width = 0;  // features of a head that are rotated, an even number
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;                     // of all scalings
  int64_t max_positions = 0;             // what the model is for; kDynamic: where its theta begins to grow
  int64_t original_positions = 0;        // of the first training; kYarn, kLongrope, kLlama3
  double attention_factor = 0;           // by which cosine and sine are multiplied; 0: the scaling's own
  double beta_fast = 32, beta_slow = 1;  // kYarn: rotations over the original length, above and below which …
  double mscale = 0, mscale_all_dim = 0;
  bool truncate = true;                             // … of whole features
  double low_frequency = 1, high_frequency = 4;     // kLlama3: the bands' ends, in rotations over the original length
  std::vector<double> short_factors, long_factors;  // kLongrope: (width / 2) each
};

class Rotary {
 public:
  explicit Rotary(RotaryOptions options);

  // Broadcast over heads: (batch or 1, length, 1, width / 2) fp32.
  struct Table {
    at::Tensor cosine;
    at::Tensor sine;
  };

  // positions (batch or 1, length) int64.
  Table table(const at::Tensor& positions) const;

  // Whether a position of an input of `one` positions is turned as it is in one of `other`.
  bool turns_alike(int64_t one, int64_t other) const;

  // Radians by which one position turns each pair of features, for an input of `length` positions: (width / 2) fp32.
  at::Tensor frequencies(int64_t length) const;

 private:
  RotaryOptions options_;
  double attention_factor_;
  at::Tensor fixed_;  // undefined where they depend on the length
};

// input (batch, length, heads, head size): the first `width` features of each head are turned, as pairs of one in the
// first half and one in the second. In the input's dtype, computed in fp32.
at::Tensor rotate(const at::Tensor& input, const Rotary::Table& table);

}  // namespace tessera::nn
