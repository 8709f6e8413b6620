// What the native handle of a stream of the far device points to: all that a library without LibTorch needs of it.
#pragma once

#include <cstddef>

namespace tessera::test {

// Bytes that something on a stream reads or writes: of the far device, or pinned memory of the host.
struct FarAccess {
  const void* begin;
  size_t bytes;
  bool writes;
};

struct FarStreamHandle {
  // What is put on a stream: its name, and what it touches, for the recorder (far_recorder.h).
  struct Work {
    const char* name;
    const FarAccess* accesses;
    size_t count;
    void (*run)(void* argument);
    void* argument;
  };

  void* (*near_of)(const void* far_address);  // where the processor may read and write what lies there
  void (*enqueue)(FarStreamHandle* stream, const Work& work);
};

}  // namespace tessera::test
