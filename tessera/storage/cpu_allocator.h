// LibTorch's CPU tensors on blocks that the next step uses again.
//
// A training step asks for the same sizes as the one before. LibTorch's own allocator (posix_memalign) makes little of
// it: what is large goes back to the system when it is freed, and at every step the same pages are found and cleared
// anew, up to a third of a step's time; and before glibc 2.38 an aligned request cannot take a freed block of its own
// size, so that small temporaries leave holes: of a step's activations a quarter to two fifths more, measured in
// docs/memory.md.
//
// Here large tensors have mappings of their own that are kept (mapped_blocks.h), and small ones are malloc's, which
// reuses its blocks. Tensors stay aligned to 64 bytes, for up to 80 more each.
#pragma once

namespace tessera::storage {

// Process-wide; existing tensors stay where they are. Further calls do nothing.
// TESSERA_KEEP_MEMORY=0 in the environment leaves LibTorch's allocator. What cannot be allocated from then on is
// ErrorKind::kMachine.
void use_reusing_cpu_allocator();

// A training step is over: what several steps in a row did not use goes back to the system.
void end_step_of_cpu_allocator();

// What is free now goes back to the system: after a phase whose blocks nothing will use again, such as building a
// model. Takes milliseconds.
void release_free_cpu_memory();

}  // namespace tessera::storage
