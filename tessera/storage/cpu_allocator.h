// LibTorch's CPU tensors on blocks of malloc instead of posix_memalign.
//
// Before glibc 2.38 an aligned request cannot take a freed block of its own size: it looks for one larger by the
// alignment. A training step asks for the same sizes again and again, so each temporary left a hole that only something
// smaller could use: of a step's activations a quarter to two fifths more, measured in docs/memory.md. malloc reuses
// them. Tensors stay aligned to 64 bytes, for 72 more each.
#pragma once

namespace tessera::storage {

// For programs whose job is training, like keep_freed_memory(); process-wide, before the first tensor is made. What
// cannot be allocated from then on is ErrorKind::kMachine.
void use_reusing_cpu_allocator();

}  // namespace tessera::storage
