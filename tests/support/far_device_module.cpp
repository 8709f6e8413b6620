// The far device as a library that a program loads.
#include "tests/support/far_device.h"

static const at::Device kRegistered = tessera::test::far_device();
