#include "tessera/engine/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

namespace tessera::engine {
namespace {

at::Generator generator_of(at::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator() : at::globalContext().defaultGenerator(device);
}

}  // namespace

at::Tensor random_state(at::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Tensor& state, at::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

void seed_random_state(uint64_t seed, at::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace tessera::engine
