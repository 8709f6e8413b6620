#include "tessera/zero/unreadable.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/serialize.h>

#include <functional>
#include <sstream>

namespace tessera::zero::unreadable_test {
namespace {

at::Tensor stand_in() { return unreadable({2, 3}, at::kBFloat16, {"nobody may read this", "here", "do that"}); }

TEST(Unreadable, HasAShapeAndADtypeAndNoBytes) {
  const at::Tensor tensor = stand_in();
  EXPECT_EQ(tensor.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(is_unreadable(tensor));
  EXPECT_TRUE(is_unreadable(tensor.t()));
  EXPECT_FALSE(is_unreadable(at::ones({2, 3})));
  EXPECT_FALSE(is_unreadable(at::empty({0})));
}

TEST(Unreadable, TellsWhoeverReadsOrWritesIt) {
  const std::vector<std::pair<const char*, std::function<void(at::Tensor)>>> uses = {
      {"an operator", [](const at::Tensor& t) { (void)(t + 1); }},
      {"a view", [](const at::Tensor& t) { (void)t.t().sum(); }},
      {"a copy", [](const at::Tensor& t) { (void)t.clone(); }},
      {"an item", [](const at::Tensor& t) { (void)t[0][0].item<float>(); }},
      {"a write", [](at::Tensor t) { t.zero_(); }},
      {"torch::save", [](const at::Tensor& t) {
         std::ostringstream out;
         torch::save(t, out);
       }}};
  for (const auto& [name, use] : uses) {
    try {
      use(stand_in());
      ADD_FAILURE() << name << " went through";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(),
                  testing::AllOf(testing::HasSubstr("nobody may read this"), testing::HasSubstr("do that")))
          << name;
    }
  }
}

}  // namespace
}  // namespace tessera::zero::unreadable_test
