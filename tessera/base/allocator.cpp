#include "tessera/base/allocator.h"

#include <climits>  // also says, as any header of the C library does, whether it is glibc

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tessera {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargestKept = 64 << 20;  // bytes; keeping larger ones too raises the peak and gains no time
  mallopt(M_MMAP_THRESHOLD, kLargestKept);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

void return_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(/*pad=*/0);
#endif
}

}  // namespace tessera
