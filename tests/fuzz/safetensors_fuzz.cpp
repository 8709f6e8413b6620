#include <numeric>

#include "tessera/storage/safetensors.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::safetensors_fuzz {

TESSERA_FUZZ_TARGET(safetensors) {
  const TemporaryFolder folder;
  const storage::SafetensorsFile file(write(folder, "model.safetensors", bytes));
  uint64_t sum = 0;  // every byte that a tensor claims is there
  for (const auto& [name, entry] : file.entries()) {
    const at::Tensor tensor = file.tensor(name);
    const auto* const data = static_cast<const unsigned char*>(tensor.const_data_ptr());
    sum = std::accumulate(data, data + tensor.nbytes(), sum);
    if (entry.numel() > 1) file.range(name, 1, entry.numel() - 1);
  }
  [[maybe_unused]] static volatile uint64_t seen;
  seen = sum;
}

}  // namespace tessera::fuzz::safetensors_fuzz
