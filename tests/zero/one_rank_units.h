// Units of one parameter of 32 elements each, at stage 3 on one rank, where a gather costs nothing.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/zero/residency.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::test {

inline constexpr int64_t kUnitNumel = 32;

struct OneRankUnits {
  explicit OneRankUnits(size_t count, bool trainable = true) {
    const zero::Policy policy = zero::policy_of_stage(3, at::kFloat, 1);
    const auto groups =
        zero::DataGroups::of(*comm::Mesh::data_parallel(comm::Group::alone()), /*shards_anything=*/true);
    for (size_t unit = 0; unit < count; ++unit) {
      params.push_back(at::full({kUnitNumel}, static_cast<double>(unit + 1)).requires_grad_(trainable));
      const std::string name = "u" + std::to_string(unit);
      const std::vector<zero::NamedParam> own{{.spec = {.name = name + ".w"}, .tensor = params.back()}};
      units.push_back(std::make_unique<zero::Unit>(name, own, zero::OptimizerNeeds{}, policy, groups, nullptr));
      units.back()->release();
    }
  }

  // "W-": the first is whole, the second is not.
  std::string states() const {
    std::string text;
    for (const auto& unit : units) text += unit->state() == zero::UnitState::kGathered ? 'W' : '-';
    return text;
  }

  std::vector<at::Tensor> params;
  zero::Units units;
};

}  // namespace tessera::test
