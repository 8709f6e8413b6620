// Floating-point operations of a model's matrix products, those of attention among them: 2 m n k of (m, k) times
// (k, n), as PyTorch's FlopCounterMode counts them. All else (norms, activations, the optimizer) is left out, and what
// is computed again; padding and what attention's mask hides count as the rest.
#pragma once

#include <cstdint>

namespace tessera::models {

struct Architecture;
struct ModelCensus;

struct BatchShape {
  int64_t texts = 1;
  int64_t length = 0;   // tokens of each; of an encoder-decoder those that are read …
  int64_t written = 0;  // … and those that are written; 0 where there is no decoder
  int64_t targets = 0;  // rows of the output layer: positions of all texts that the loss counts, or texts to classify
};

double forward_flops(const Architecture& net, const BatchShape& batch);

// Forward and backward. Backward has two products for each of forward's: of the gradient of its input, and of its
// weight, which a frozen one has none of. The model has an architecture.
double training_flops(const ModelCensus& model, const BatchShape& batch);

}  // namespace tessera::models
