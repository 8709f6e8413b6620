#include "tessera/zero/unreadable.h"

#include <ATen/ops/empty.h>

namespace tessera::zero {

at::Tensor unreadable(at::IntArrayRef shape, const at::TensorOptions& options, const ErrorReport& report) {
  at::Tensor tensor = at::empty({0}, options);
  const Error error(ErrorKind::kUsage, report);
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(error.what());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  storage->set_nbytes(tensor.nbytes());  // as if it had them, for operators that check a view's bounds
  return tensor;
}

bool is_unreadable(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  try {
    tensor.storage().data();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

}  // namespace tessera::zero
