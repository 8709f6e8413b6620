// Learning-rate schedules, DeepSpeed's and those of Hugging Face's trainers, as pure functions of the step, so that a
// schedule's whole state is one number.
//
// `n` counts as DeepSpeed's last_batch_iteration does: -1 before the first step, 0 after it, and so on; step k (from 1)
// is taken with the values of n = k - 2. The formulas, with w = max(2, warmup_num_steps) and N = total_num_steps:
//
//   gamma(n)        log: ln(n+1) / ln(w)      linear: n / w                   for 0 <= n < w
//   WarmupLR        min + (max - min) gamma(n); gamma = 1 from n = w; at n = -1: min
//   WarmupDecayLR   the same, gamma = max(0, (N - n) / max(1, N - w)) from n = w
//   WarmupCosineLR  lr0 r; r = rmin + (1 - rmin) gamma(n), from n = w: k = min(1, (n - w + 1) / max(1, N - w)),
//                   r = max(0, c + (1 - c)(1 + cos(pi k)) / 2); at n = -1: 0
//   LRRangeTest     min (1 + rate i), i = (n + 1) / step_size, rounded down when staircase; at n = -1: min
//   OneCycle        see OneCycle in schedule.cpp
//
// Hugging Face's (transformers.optimization), with t = n + 1 steps taken, w = num_warmup_steps, T = num_training_steps,
// d = (t - w) / max(1, T - w): lr0 t / w while t < w, then lr0 times
//
//   constant, constant_with_warmup   1                (the former has no warm-up)
//   linear                           max(0, 1 - d)
//   cosine                           (1 + cos(2 pi num_cycles d)) / 2
//   cosine_with_restarts             (1 + cos(pi frac(num_cycles d))) / 2; 0 from d = 1
//   polynomial                       ((lr0 - lr_end) (1 - d)^power + lr_end) / lr0; lr_end / lr0 from t > T
//   inverse_sqrt                     1 / sqrt((t + s - w) / s), s = timescale, w or 10000
//
// lr0 is the group's own learning rate. Immutable; safe from any thread.
#pragma once

#include <memory>
#include <optional>

#include "tessera/base/registry.h"
#include "tessera/config/ds_config.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct ScheduledValues {
  double lr = 0;
  std::optional<double> beta1;  // OneCycle cycles the momentum too, …
  std::optional<double> beta2;  // … and then fixes this
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  // `group` with its values at construction; `index`: which entry of a list-valued parameter is its own.
  virtual ScheduledValues at(int64_t n, const ParamGroup& group, size_t index) const = 0;

  // The numbers that the formula makes of its parameters for a group, by name, for programs that show them.
  virtual config::Json terms(const ParamGroup& /*group*/, size_t /*index*/) const { return config::Json::object(); }
};

using MakeSchedule = std::unique_ptr<Schedule> (*)(const config::SchedulerOptions& options);

Registry<MakeSchedule> schedules();

}  // namespace tessera::optim
