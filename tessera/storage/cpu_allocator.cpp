#include "tessera/storage/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::storage {
namespace {

constexpr size_t kAlignment = 64;

// Before the data lies the address of the block that malloc gave.
void release(void* data) {
  if (data != nullptr) std::free(static_cast<void**>(data)[-1]);
}

class ReusingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    void* const block = std::malloc(bytes + kAlignment + sizeof(void*));
    if (block == nullptr) {
      throw Error(ErrorKind::kMachine, {"there is no memory for " + format_bytes(bytes) + " more", "a tensor",
                                        "tessera estimate says what the run needs, and what would fit"});
    }
    const auto after_address = reinterpret_cast<uintptr_t>(block) + sizeof(void*);
    void* const data = reinterpret_cast<void*>((after_address + kAlignment - 1) / kAlignment * kAlignment);
    static_cast<void**>(data)[-1] = block;
    return {data, data, &release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

void use_reusing_cpu_allocator() {
  static ReusingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace tessera::storage
