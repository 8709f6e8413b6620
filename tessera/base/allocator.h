// How this process's memory allocator treats freed memory.
#pragma once

namespace tessera {

// From now on malloc's freed blocks of up to 64 MiB stay with the process, ready for the next step, instead of going
// back to the kernel, which would have to hand out and clear the same pages again at every step. Large tensors do not
// come from malloc (storage/cpu_allocator.h): this is for small ones, and for what libraries allocate. For programs
// whose job is training; process-wide, so never called by a library on its own. Does nothing where the C library has no
// such setting.
void keep_freed_memory();

// Gives what is free now back to the kernel: after a phase whose blocks nothing will use again, such as building a
// model. Takes milliseconds.
void return_freed_memory();

}  // namespace tessera
