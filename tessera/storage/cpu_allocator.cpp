#include "tessera/storage/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tessera/base/allocator.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/storage/mapped_blocks.h"

namespace tessera::storage {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallestMapped = 1 << 20;  // smaller ones malloc keeps by itself

// Never destroyed: tensors of static variables are freed after everything else.
MappedBlocks& mapped_blocks() {
  static auto* const blocks = new MappedBlocks;
  return *blocks;
}

// Lies right before the data.
struct Header {
  void* block;
  size_t mapped_bytes;  // 0: the block is malloc's
};

void release(void* data) {
  if (data == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  const Header header = static_cast<Header*>(data)[-1];
  if (header.mapped_bytes == 0) {
    std::free(header.block);
  } else {
    mapped_blocks().give_back({header.block, header.mapped_bytes});
  }
}

void* aligned_data(const Header& header) {
  const auto after_header = reinterpret_cast<uintptr_t>(header.block) + sizeof(Header);
  void* const data = reinterpret_cast<void*>((after_header + kAlignment - 1) / kAlignment * kAlignment);
  static_cast<Header*>(data)[-1] = header;
  return data;
}

class ReusingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    const size_t room = bytes + kAlignment + sizeof(Header);
    Header header{};
    if (bytes < kSmallestMapped) {
      header.block = std::malloc(room);
    } else {
      const MappedBlock block = mapped_blocks().take(room);
      header = {block.address, block.bytes};
    }
    // Its last words are those by which Accelerate knows that a smaller batch may help.
    if (header.block == nullptr) {
      throw Error(ErrorKind::kMachine, {"cannot allocate another " + format_bytes(bytes), "a tensor",
                                        "use tessera estimate to see what the run needs and what would fit "
                                        "(DefaultCPUAllocator: can't allocate memory)"});
    }
    void* const data = aligned_data(header);
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

void use_reusing_cpu_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (env_choice("TESSERA_KEEP_MEMORY", {"0", "1"}) == "0") return;
    static ReusingAllocator allocator;
    pthread_atfork([] { mapped_blocks().lock(); }, [] { mapped_blocks().unlock(); }, [] { mapped_blocks().unlock(); });
    c10::SetCPUAllocator(&allocator, /*priority=*/1);
  });
}

void end_step_of_cpu_allocator() { mapped_blocks().end_step(); }

void release_free_cpu_memory() {
  mapped_blocks().release_idle();
  return_freed_memory();
}

}  // namespace tessera::storage
