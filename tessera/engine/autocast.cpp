#include "tessera/engine/autocast.h"

#include <ATen/autocast_mode.h>

namespace tessera::engine {

Autocast::Autocast(c10::DeviceType device, std::optional<at::ScalarType> dtype)
    : device_(device),
      enabled_before_(at::autocast::is_autocast_enabled(device)),
      cache_before_(at::autocast::is_autocast_cache_enabled()),
      dtype_before_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_enabled(device_, dtype.has_value());
  at::autocast::set_autocast_cache_enabled(false);
  if (dtype) at::autocast::set_autocast_dtype(device_, *dtype);
}

Autocast::~Autocast() {
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace tessera::engine
