#include "tessera/storage/pages.h"

#include <sys/mman.h>

namespace tessera::storage {
namespace {

constexpr size_t kHugePage = 2 << 20;

}  // namespace

void* map_pages(size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  if (bytes >= kHugePage) madvise(address, bytes, MADV_HUGEPAGE);  // refused where the system has none: as well
  return address;
}

}  // namespace tessera::storage
