// A guard under which LibTorch runs matrix products and the like in a lower dtype: torch.autocast.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace tessera::engine {

// Without a dtype autocast is off inside, whatever it is outside. Casts of parameters are not cached, so that nothing
// outlives the release of a gathered parameter. One thread; guards nest.
class Autocast {
 public:
  Autocast(c10::DeviceType device, std::optional<at::ScalarType> dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_before_;
  bool cache_before_;
  at::ScalarType dtype_before_;
};

}  // namespace tessera::engine
