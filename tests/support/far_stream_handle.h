// What the native handle of a stream of the far device points to: all that a library without LibTorch needs of it.
#pragma once

namespace tessera::test {

struct FarStreamHandle {
  void* (*near_of)(const void* far_address);  // where the processor may read and write what lies there
  void (*enqueue)(FarStreamHandle* stream, void (*run)(void* argument), void* argument);
};

}  // namespace tessera::test
