#include "tessera/comm/backends.h"

namespace tessera::comm {

Registry<MakeBackend> backends() {
  static constexpr Registry<MakeBackend>::Entry kEntries[] = {
      {"gloo", "TCP between any hosts, CPU tensors (part of LibTorch)", make_gloo_backend},
  };
  return {"communication backend", kEntries};
}

}  // namespace tessera::comm
