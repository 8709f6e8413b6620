#include "tessera/storage/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <optional>

#include "tessera/base/error.h"

namespace tessera::storage {
namespace {

std::optional<c10::Device> parse(const std::string& name) {
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace

int device_count(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::VirtualGuardImpl(type).deviceCount() : 0;
}

c10::Device device_of_rank(const std::string& name, int local_rank, const std::string& where) {
  if (name == "auto") return device_of_rank(device_count(c10::kCUDA) > 0 ? "cuda" : "cpu", local_rank, where);
  const std::optional<c10::Device> named = parse(name);
  if (named && named->is_cpu()) return *named;
  const int count = named ? device_count(named->type()) : 0;
  if (count == 0 || named->index() >= count) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("there is no device '{}' on this machine", name), where,
                 "use cpu, or build Tessera against a torch that supports the device (TESSERA_TORCH)"});
  }
  return named->has_index() ? *named : c10::Device(named->type(), static_cast<c10::DeviceIndex>(local_rank % count));
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace tessera::storage
