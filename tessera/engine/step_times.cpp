#include "tessera/engine/step_times.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <string>

#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/base/log.h"

namespace tessera::engine {
namespace {

constexpr const char* kNames[] = {"fwd", "bwd", "step"};  // by Part

}  // namespace

StepTimes::Scope::Scope(StepTimes& times, Part part) {
  if (!times.on_ || times.running_) return;
  times_ = &times;
  times.running_ = part;
  times.begin_ = times.now();
}

StepTimes::Scope::~Scope() {
  if (times_ == nullptr) return;
  const double spent = std::chrono::duration<double, std::milli>(times_->now() - times_->begin_).count();
  times_->of_micro_batch_.at(*times_->running_) += spent;
  times_->running_.reset();
}

std::chrono::steady_clock::time_point StepTimes::now() const {
  if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  return std::chrono::steady_clock::now();
}

void StepTimes::end_micro_batch(bool ends_step) {
  if (!on_) return;
  log("_microstep", of_micro_batch_);
  for (size_t part = 0; part < of_step_.size(); ++part) of_step_.at(part) += of_micro_batch_.at(part);
  of_micro_batch_ = {};
  if (!ends_step) return;
  log("", of_step_);
  of_step_ = {};
}

void StepTimes::log(const char* suffix, const Milliseconds& spent) const {
  std::string text = "time (ms)";
  for (size_t part = 0; part < spent.size(); ++part) {
    text += fmt::format(" | {}{}: {:.2f}", kNames[part], suffix, spent.at(part));
  }
  if (memory_) text += fmt::format(" | peak memory: {}", format_bytes(static_cast<uint64_t>(peak_memory_bytes())));
  log_info("{}", text);
}

}  // namespace tessera::engine
