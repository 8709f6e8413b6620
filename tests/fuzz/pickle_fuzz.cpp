#include <numeric>

#include "tessera/models/state_dict_pickle.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::pickle_fuzz {
namespace {

unsigned char last_byte(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) last += (tensor.size(axis) - 1) * tensor.stride(axis);
  return static_cast<const unsigned char*>(tensor.const_data_ptr())[(last + 1) * tensor.element_size() - 1];
}

}  // namespace

TESSERA_FUZZ_TARGET(pickle) {
  // pytorch_model.bin: an archive of records, one of which is a pickle.
  const TemporaryFolder folder;
  uint64_t sum = 0;  // every byte that a tensor claims is there
  for (const auto& [name, tensor] : models::read_state_dict(write(folder, "pytorch_model.bin", bytes))) {
    const auto* const data = static_cast<const unsigned char*>(tensor.storage().data());
    sum = std::accumulate(data, data + tensor.storage().nbytes(), sum) + last_byte(tensor);
  }
  [[maybe_unused]] static volatile uint64_t seen;
  seen = sum;
}

}  // namespace tessera::fuzz::pickle_fuzz
