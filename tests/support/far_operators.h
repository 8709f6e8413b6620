// LibTorch's operators on the far device: registers them.
#pragma once

namespace tessera::test {

void register_far_operators();

}  // namespace tessera::test
