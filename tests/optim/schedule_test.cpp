// DeepSpeed 0.19.8's own numbers: learning rates at construction and after each step, with AdamW's lr 0.1.
#include "tessera/optim/schedule.h"

#include <gtest/gtest.h>

namespace tessera::optim::schedule_test {
namespace {

const ParamGroup kGroup{.lr = 0.1};

void expect_rates(const std::string& type, const nlohmann::json& params, const std::vector<double>& want) {
  const auto schedule = schedules().find(type, "").make({.type = type, .params = params});
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(schedule->at(static_cast<int64_t>(i) - 1, kGroup, 0).lr, want[i], 5e-7) << type << " at entry " << i;
  }
}

TEST(Schedule, WarmupLR) {
  expect_rates("WarmupLR", {{"warmup_num_steps", 4}, {"warmup_type", "linear"}},
               {0, 0, .025, .05, .075, .1, .1, .1, .1});
}

TEST(Schedule, WarmupDecayLR) {
  expect_rates("WarmupDecayLR", {{"total_num_steps", 6}, {"warmup_num_steps", 2}, {"warmup_type", "linear"}},
               {0, 0, .0005, .001, .00075, .0005, .00025, 0, 0});
}

TEST(Schedule, WarmupCosineLR) {
  expect_rates("WarmupCosineLR", {{"total_num_steps", 6}, {"warmup_num_steps", 2}, {"warmup_type", "linear"}},
               {0, 0, .05, .085357, .050005, .014653, 1e-5, 1e-5, 1e-5});
}

TEST(Schedule, LRRangeTest) {
  expect_rates("LRRangeTest", {{"lr_range_test_step_size", 2}},
               {.001, .0015, .002, .0025, .003, .0035, .004, .0045, .005});
}

TEST(Schedule, OneCycle) {
  const nlohmann::json params = {{"cycle_min_lr", .1},
                                 {"cycle_max_lr", 1},
                                 {"cycle_first_step_size", 2},
                                 {"decay_step_size", 1},
                                 {"decay_lr_rate", 1}};
  expect_rates("OneCycle", params, {.1, .55, 1, .55, .1, .05, .033333, .025, .02});
  const auto last = schedules().find("OneCycle", "").make({.type = "OneCycle", .params = params})->at(7, kGroup, 0);
  EXPECT_NEAR(last.beta1.value(), .9, 1e-9);
  EXPECT_NEAR(last.beta2.value(), .99, 1e-9);
}

// gamma(n) = ln(n + 1) / ln(w), DeepSpeed's default.
TEST(Schedule, WarmupIsLogarithmicUnlessToldOtherwise) {
  const auto schedule =
      schedules().find("WarmupLR", "").make({.type = "WarmupLR", .params = {{"warmup_num_steps", 10}}});
  EXPECT_NEAR(schedule->at(3, kGroup, 0).lr, .1 * std::log(4) / std::log(10), 1e-12);
}

// As DeepSpeed's classes show them in their attributes.
TEST(Schedule, ShowsWhatItMakesOfItsParameters) {
  const auto terms = [](const char* type, const nlohmann::json& params) {
    return schedules().find(type, "").make({.type = type, .params = params})->terms(kGroup, 1);
  };
  EXPECT_EQ(terms("WarmupLR", {{"warmup_num_steps", 0}}).at("warmup_num_steps"), 2);
  const nlohmann::json warmup = terms("WarmupLR", {{"warmup_num_steps", 1}, {"warmup_min_lr", {0.5, 0.025}}});
  EXPECT_EQ(warmup.at("warmup_num_steps"), 2);  // at least
  EXPECT_EQ(warmup.at("max_lr"), 0.1);          // the group's own
  EXPECT_DOUBLE_EQ(warmup.at("delta_lr"), 0.075);
  const nlohmann::json cycle = terms("OneCycle", {{"cycle_first_step_size", 3}, {"cycle_max_lr", {1, 2}}});
  EXPECT_EQ(cycle.at("second_step_size"), 3);
  EXPECT_EQ(cycle.at("step_ratio"), 0.5);
  EXPECT_EQ(cycle.at("max_lr"), 2);
  EXPECT_EQ(cycle.at("max_mom"), nlohmann::json({0.9, 0.99}));
}

}  // namespace
}  // namespace tessera::optim::schedule_test
