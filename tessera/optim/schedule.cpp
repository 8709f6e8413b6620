#include "tessera/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::optim {
namespace {

using config::Json;

// A number, or the group's entry of a list (a list of one serves all groups); nothing for null.
std::optional<double> number(const Json& params, const char* key, size_t index = 0) {
  const auto found = params.find(key);
  if (found == params.end() || found->is_null()) return std::nullopt;
  if (!found->is_array()) return found->get<double>();
  if (found->size() != 1 && index >= found->size()) {
    throw Error(ErrorKind::kConfig, {std::string("'") + key + "' has fewer entries than there are parameter groups", "",
                                     "give one value, or one per group"});
  }
  return found->at(found->size() == 1 ? 0 : index).get<double>();
}

class Warmup {
 public:
  explicit Warmup(const Json& params)
      : steps_(number(params, "warmup_num_steps").value_or(1000)),
        linear_(params.value("warmup_type", "log") == "linear") {
    // What "auto" gives where there is to be none; DeepSpeed refuses it.
    if (steps_ < 1) log_warning("warmup_num_steps is 0, and DeepSpeed's warm-up has at least 2: it is taken as 2");
    steps_ = std::max(2.0, steps_);
  }

  double steps() const { return steps_; }
  Json terms() const {
    return {{"warmup_num_steps", static_cast<int64_t>(steps_)}, {"warmup_type", linear_ ? "linear" : "log"}};
  }
  bool done(int64_t n) const { return static_cast<double>(n) >= steps_; }
  double gamma(int64_t n) const {
    const auto at = static_cast<double>(n);
    return linear_ ? at / steps_ : std::log(at + 1) / std::log(steps_);
  }

 private:
  double steps_;
  bool linear_;
};

class WarmupLr : public Schedule {
 public:
  // With `decays` it is WarmupDecayLR.
  WarmupLr(const Json& params, bool decays) : params_(params), warmup_(params), decays_(decays) {}

  ScheduledValues at(int64_t n, const ParamGroup& group, size_t index) const override {
    const auto [low, delta] = rise(group, index);
    if (n < 0) return {.lr = low};
    return {.lr = low + delta * (warmup_.done(n) ? after(n) : warmup_.gamma(n))};
  }

  Json terms(const ParamGroup& group, size_t index) const override {
    const auto [low, delta] = rise(group, index);
    Json terms = warmup_.terms();
    terms.update({{"min_lr", low}, {"max_lr", high(group, index)}, {"delta_lr", delta}});
    return terms;
  }

 private:
  double high(const ParamGroup& group, size_t index) const {
    return number(params_, "warmup_max_lr", index).value_or(decays_ ? 0.001 : group.lr);
  }
  // From where, and by how much.
  std::pair<double, double> rise(const ParamGroup& group, size_t index) const {
    const double low = number(params_, "warmup_min_lr", index).value_or(0);
    return {low, high(group, index) - low};
  }
  double after(int64_t n) const {
    if (!decays_) return 1;
    const double total = number(params_, "total_num_steps").value_or(0);
    return std::max(0.0, (total - static_cast<double>(n)) / std::max(1.0, total - warmup_.steps()));
  }

  Json params_;
  Warmup warmup_;
  bool decays_;
};

class WarmupCosineLr : public Schedule {
 public:
  explicit WarmupCosineLr(const Json& params)
      : warmup_(params),
        total_(number(params, "total_num_steps").value_or(0)),
        first_(number(params, "warmup_min_ratio").value_or(0)),
        last_(number(params, "cos_min_ratio").value_or(0.0001)) {}

  ScheduledValues at(int64_t n, const ParamGroup& group, size_t) const override {
    return {.lr = n < 0 ? 0 : group.lr * ratio(n)};
  }
  Json terms(const ParamGroup&, size_t) const override { return warmup_.terms(); }

 private:
  double ratio(int64_t n) const {
    if (!warmup_.done(n)) return first_ + (1 - first_) * warmup_.gamma(n);
    const double w = warmup_.steps();
    const double k = std::min(1.0, (static_cast<double>(n) - w + 1) / std::max(1.0, total_ - w));
    return std::max(0.0, last_ + (1 - last_) * (1 + std::cos(std::numbers::pi * k)) / 2);
  }

  Warmup warmup_;
  double total_, first_, last_;
};

class LrRangeTest : public Schedule {
 public:
  explicit LrRangeTest(const Json& params) : params_(params) {}

  ScheduledValues at(int64_t n, const ParamGroup&, size_t index) const override {
    const double low = min_lr(index);
    if (n < 0) return {.lr = low};
    double interval = static_cast<double>(n + 1) / number(params_, "lr_range_test_step_size").value_or(2000);
    if (params_.value("lr_range_test_staircase", false)) interval = std::floor(interval);
    return {.lr = low * (1 + number(params_, "lr_range_test_step_rate").value_or(1.0) * interval)};
  }
  Json terms(const ParamGroup&, size_t index) const override { return {{"min_lr", min_lr(index)}}; }

 private:
  double min_lr(size_t index) const { return number(params_, "lr_range_test_min_lr", index).value_or(1e-3); }

  Json params_;
};

// One rise and fall of the learning rate (and, mirrored, of the momentum), then a slow decay. With first and second
// sizes S1, S2, S = S1 + S2, b = n + 1, x = 1 + b/S - floor(1 + b/S), q = S1/S: f = x/q up to q, then (x - 1)/(q - 1);
// with stair counts f in steps of the half's length. lr = min + (max - min) f, momentum = max_mom - (max_mom - min_mom)
// f while n < S; afterwards, with d = n - S + 1 and D = decay_step_size: lr = min / (1 + decay_lr_rate d/D), momentum =
// max_mom (1 + decay_mom_rate d/D).
class OneCycle : public Schedule {
 public:
  explicit OneCycle(const Json& params)
      : params_(params),
        first_(number(params, "cycle_first_step_size").value_or(2000)),
        second_(number(params, "cycle_second_step_size").value_or(first_)),
        first_stairs_(number(params, "cycle_first_stair_count").value_or(0)),
        second_stairs_(number(params, "cycle_second_stair_count").value_or(first_stairs_)),
        decay_step_(number(params, "decay_step_size").value_or(0)) {}

  ScheduledValues at(int64_t n, const ParamGroup&, size_t index) const override {
    const auto [low, high, low_momentum, high_momentum] = ends(index);
    ScheduledValues values{.lr = low};
    double momentum = low_momentum;
    const double total = first_ + second_;
    if (n >= 0 && static_cast<double>(n) < total) {
      const double f = factor(static_cast<double>(n + 1));
      values.lr = low + (high - low) * f;
      momentum = high_momentum - (high_momentum - low_momentum) * f;
    } else if (n >= 0) {
      const double decays = decay_step_ == 0 ? 0 : (static_cast<double>(n) - total + 1) / decay_step_;
      values.lr = low / (1 + number(params_, "decay_lr_rate").value_or(0) * decays);
      momentum = high_momentum * (1 + number(params_, "decay_mom_rate").value_or(0) * decays);
    }
    if (params_.value("cycle_momentum", true)) {
      values.beta1 = momentum;
      values.beta2 = kBeta2;
    }
    return values;
  }

  Json terms(const ParamGroup&, size_t index) const override {
    const auto [low, high, low_momentum, high_momentum] = ends(index);
    return {{"min_lr", low},
            {"max_lr", high},
            {"min_mom", {low_momentum, kBeta2}},
            {"max_mom", {high_momentum, kBeta2}},
            {"first_step_size", first_},
            {"second_step_size", second_},
            {"total_size", first_ + second_},
            {"step_ratio", first_ / (first_ + second_)}};
  }

 private:
  static constexpr double kBeta2 = 0.99;

  struct Ends {
    double low, high;
    double low_momentum, high_momentum;
  };
  Ends ends(size_t index) const {
    return {.low = number(params_, "cycle_min_lr", index).value_or(0),
            .high = number(params_, "cycle_max_lr", index).value_or(0),
            .low_momentum = number(params_, "cycle_min_mom", index).value_or(0.8),
            .high_momentum = number(params_, "cycle_max_mom", index).value_or(0.9)};
  }

  double factor(double b) const {
    const double total = first_ + second_;
    const double x = 1 + b / total - std::floor(1 + b / total);
    const double q = first_ / total;
    const double c = std::fmod(b, total);
    const bool rising = c <= first_;
    const double stairs = rising ? first_stairs_ : second_stairs_;
    if (stairs > 0) {
      return rising ? std::floor(c * stairs / first_) / stairs : std::floor((total - c) * stairs / second_) / stairs;
    }
    return x <= q ? x / q : (x - 1) / (q - 1);
  }

  Json params_;
  double first_, second_, first_stairs_, second_stairs_, decay_step_;
};

// Hugging Face's schedules: in a line from 0 to the rate during the warm-up, then the group's rate times a shape. They
// count steps from 0.
class WarmupThenShape : public Schedule {
 public:
  struct Step {
    double t;       // from 0
    double warmup;  // steps
    double total;   // steps
    double done;    // share of the steps after the warm-up
    double lr;      // of the group
  };
  using Shape = double (*)(const Step& step, const Json& params);

  WarmupThenShape(const Json& params, Shape shape) : params_(params), shape_(shape) {}

  ScheduledValues at(int64_t n, const ParamGroup& group, size_t) const override {
    Step step{.t = static_cast<double>(n + 1),
              .warmup = number(params_, "num_warmup_steps").value_or(0),
              .total = number(params_, "num_training_steps").value_or(0),
              .done = 0,
              .lr = group.lr};
    if (step.t < step.warmup) return {.lr = group.lr * step.t / step.warmup};
    step.done = (step.t - step.warmup) / std::max(1.0, step.total - step.warmup);
    return {.lr = group.lr * shape_(step, params_)};
  }

 private:
  Json params_;
  Shape shape_;
};

using Step = WarmupThenShape::Step;

double constant(const Step&, const Json&) { return 1; }

double linear(const Step& step, const Json&) { return std::max(0.0, 1 - step.done); }

double cosine(const Step& step, const Json& params) {
  const double cycles = number(params, "num_cycles").value_or(0.5);
  return std::max(0.0, (1 + std::cos(std::numbers::pi * cycles * 2 * step.done)) / 2);
}

double cosine_with_restarts(const Step& step, const Json& params) {
  if (step.done >= 1) return 0;
  const double cycles = number(params, "num_cycles").value_or(1);
  return std::max(0.0, (1 + std::cos(std::numbers::pi * std::fmod(cycles * step.done, 1.0))) / 2);
}

double polynomial(const Step& step, const Json& params) {
  const double end = number(params, "lr_end").value_or(1e-7);
  if (step.t > step.total) return end / step.lr;
  const double left = std::pow(1 - step.done, number(params, "power").value_or(1));
  return ((step.lr - end) * left + end) / step.lr;
}

double inverse_sqrt(const Step& step, const Json& params) {
  const double timescale = number(params, "timescale").value_or(step.warmup > 0 ? step.warmup : 10000);
  return 1 / std::sqrt((step.t + timescale - step.warmup) / timescale);
}

template <class S, auto... extra>
std::unique_ptr<Schedule> make(const config::SchedulerOptions& options) {
  return std::make_unique<S>(options.params, extra...);
}

}  // namespace

Registry<MakeSchedule> schedules() {
  static constexpr Registry<MakeSchedule>::Entry kEntries[] = {
      {"WarmupLR", "rises to the maximum, then stays there", make<WarmupLr, false>},
      {"WarmupDecayLR", "rises to the maximum, then falls linearly to 0", make<WarmupLr, true>},
      {"WarmupCosineLR", "rises, then falls along a cosine", make<WarmupCosineLr>},
      {"LRRangeTest", "keeps rising, to find the largest usable rate", make<LrRangeTest>},
      {"OneCycle", "one rise and fall, with momentum mirrored, then decay", make<OneCycle>},
      {"constant", "stays constant", make<WarmupThenShape, constant>},
      {"constant_with_warmup", "rises, then stays constant", make<WarmupThenShape, constant>},
      {"linear", "rises, then falls linearly to 0", make<WarmupThenShape, linear>},
      {"cosine", "rises, then falls along a cosine", make<WarmupThenShape, cosine>},
      {"cosine_with_restarts", "rises, then falls along a cosine several times",
       make<WarmupThenShape, cosine_with_restarts>},
      {"polynomial", "rises, then falls as a power of the steps left", make<WarmupThenShape, polynomial>},
      {"inverse_sqrt", "rises, then falls as 1 / sqrt(step)", make<WarmupThenShape, inverse_sqrt>},
  };
  return {"scheduler", kEntries};
}

}  // namespace tessera::optim
