// The values that a model's parameters start with: the weights of its folder, and the model's own initial values for
// those that the folder lacks, or for all. Notes which names found no partner.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/models/model.h"

namespace tessera::models {

class InitialValues {
 public:
  // Borrows the model. `weights`: a folder; empty: everything is initialised. `adapter`: a folder in PEFT's format
  // whose weights come before the model's; empty: none. ErrorKind::kData: see PretrainedWeights.
  InitialValues(const Model& model, const Network& network, const std::string& weights, uint64_t seed,
                const std::string& adapter = "");

  void fill(const std::string& name, at::Tensor value);

  // Logs the names without partner.
  void report() const;

 private:
  const Model& model_;
  uint64_t seed_;
  std::unique_ptr<PretrainedWeights> weights_;
  std::unique_ptr<PretrainedWeights> adapter_;
  std::vector<std::string> missing_;
  std::vector<std::string> unexpected_;
};

// Fills with normal(0, deviation), by (seed, name) alone: what most models' matrices begin with.
void draw_normal(uint64_t seed, const std::string& name, double deviation, const at::Tensor& value);

}  // namespace tessera::models
