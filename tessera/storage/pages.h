// Memory from the system, in pages.
#pragma once

#include <cstddef>

namespace tessera::storage {

inline constexpr size_t kPageBytes = 4096;

// Rounded up.
constexpr size_t whole_pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// New private memory of zeros, a multiple of kPageBytes, in huge pages where the system gives them. munmap gives it
// back. Null where there is none, with the reason in errno.
void* map_pages(size_t bytes);

}  // namespace tessera::storage
