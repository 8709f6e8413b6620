// For test_nf4_parity.py: what kernels/nf4.h makes of weights.
//
//   nf4_tool INPUT.safetensors OUTPUT.safetensors
//
// INPUT holds fp32 matrices. OUTPUT gets of each its bytes, as "blocks/" and "nested/" + its name, and what they stand
// for, as "fp32/", "bf16/" and "fp16/" + its name.
#include <ATen/ATen.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tessera/kernels/nf4.h"
#include "tessera/storage/safetensors.h"

using namespace tessera;

namespace {

void run(const std::string& input, const std::string& output) {
  const storage::SafetensorsFile weights(input);
  std::vector<std::pair<std::string, at::Tensor>> results;
  for (const auto& [name, entry] : weights.entries()) {
    const at::Tensor weight = weights.tensor(name).contiguous();
    const kernels::Nf4 bytes{.blocks = at::empty({kernels::nf4_block_bytes(weight.numel())}, at::kByte),
                             .nested = at::empty({kernels::nf4_nested_bytes(weight.numel())}, at::kByte)};
    kernels::quantize_nf4(weight, bytes);
    results.emplace_back("blocks/" + name, bytes.blocks);
    results.emplace_back("nested/" + name, bytes.nested);
    const kernels::Nf4Part whole = kernels::Nf4Part::whole(weight.size(0), weight.size(1));
    for (const auto& [dtype, called] : std::vector<std::pair<at::ScalarType, std::string>>{
             {at::kFloat, "fp32/"}, {at::kBFloat16, "bf16/"}, {at::kHalf, "fp16/"}}) {
      results.emplace_back(called + name, kernels::dequantize_nf4(bytes, whole, dtype));
    }
  }
  std::vector<storage::PlannedTensor> plan;
  for (const auto& [name, tensor] : results) plan.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  storage::SafetensorsWriter writer(output, std::move(plan));
  for (const auto& [name, tensor] : results) writer.add(tensor);
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
