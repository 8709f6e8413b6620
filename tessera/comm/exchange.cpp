#include "tessera/comm/exchange.h"

#include <ATen/ops/empty.h>

#include "tessera/base/error.h"

namespace tessera::comm {

Exchange::PendingPtr Exchange::all_reduce(const at::Tensor& buffer, double /*scale*/, uint64_t /*tag*/) {
  TESSERA_INVARIANT(all_reduces(buffer));
  return nullptr;
}

at::Tensor Exchange::empty(int64_t numel, const at::TensorOptions& options) { return at::empty({numel}, options); }

}  // namespace tessera::comm
