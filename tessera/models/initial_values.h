// The values that a model's parameters start with: the weights of its folder, and the model's own initial values for
// those that the folder lacks, or for all. Those that the network keeps as NF4 are quantized one at a time, as they are
// read. Notes which names found no partner.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/model.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/nf4_product.h"

namespace tessera::comm {
class Group;
}

namespace tessera::models {

class InitialValues {
 public:
  // Borrows both. `weights`: a folder; empty: everything is initialised. `adapter`: a folder in PEFT's format
  // whose weights come before the model's; empty: none. ErrorKind::kData: see PretrainedWeights.
  InitialValues(const Model& model, const Network& network, const std::string& weights, uint64_t seed,
                const std::string& adapter = "");

  // `value`: fp32 of the parameter's shape, or the bytes of one that is quantized. A new DoRA's magnitude gets the
  // norms of its weight's rows.
  void fill(const std::string& name, at::Tensor value);

  // Logs the names without partner, and apart from them those below `new_modules`, which the weights may lack. Ranks
  // that hold other parts of the model tell theirs: collective over `parts`, whose first rank logs.
  void report(const std::vector<std::string>& new_modules, comm::Group& parts) const;

 private:
  nn::Nf4 quantized(const std::string& path, const nn::Adaptable& layer);
  void fill_floating(const std::string& name, const at::Tensor& value);
  void fill_of_model(const std::string& name, const at::Tensor& value);
  void fill_magnitude(const std::string& name, const at::Tensor& value);

  const Model& model_;
  uint64_t seed_;
  std::map<std::string, const nn::Adaptable*> adaptable_;  // by their paths
  struct {
    std::string path;
    nn::Nf4 bytes;
  } quantized_;  // the layer that was quantized last: its other parameter comes next
  std::unique_ptr<PretrainedWeights> weights_;
  std::unique_ptr<PretrainedWeights> adapter_;
  std::vector<std::string> missing_;
  std::vector<std::string> unexpected_;
};

// Fills with normal(0, deviation), by (seed, name) alone: what most models' matrices begin with.
void draw_normal(uint64_t seed, const std::string& name, double deviation, const at::Tensor& value);

}  // namespace tessera::models
