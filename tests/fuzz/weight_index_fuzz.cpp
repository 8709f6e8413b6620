#include <ATen/ops/empty.h>

#include "tessera/models/model.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::weight_index_fuzz {

TESSERA_FUZZ_TARGET(weight_index) {
  // model.safetensors.index.json, beside one file of weights: of "a", two fp32 numbers.
  constexpr std::string_view kHeader = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const TemporaryFolder folder;
  std::string weights = std::string{static_cast<char>(kHeader.size())} + std::string(7, '\0');
  weights += std::string(kHeader) + std::string(8, '\0');
  write(folder, "w.safetensors", weights);
  write(folder, "model.safetensors.index.json", bytes);
  const models::PretrainedWeights read(folder.path(), "bert.");
  for (const auto& [name, shape] : read.shapes()) read.fill(name, at::empty(shape));
}

}  // namespace tessera::fuzz::weight_index_fuzz
