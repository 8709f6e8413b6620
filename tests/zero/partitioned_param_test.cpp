#include "tessera/zero/partitioned_param.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/support/spawn_ranks.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::partitioned_param_test {
namespace {

using test::kPieces;
using test::kShapes;
using test::kThreeRanks;
using test::numbers;

DataGroups groups_of(const std::shared_ptr<comm::Group>& world, int stage) {
  return DataGroups::of(*comm::Mesh::data_parallel(world), /*shards_anything=*/stage > 0);
}

// What rank 0 has; other ranks have something else.
at::Tensor parameter_of(const at::Tensor& values, int rank) {
  return (rank == 0 ? values.clone() : at::full_like(values, rank)).requires_grad_(true);
}

TEST(PartitionedParam, IsWhatRankZeroHadInTheDtypeAskedFor) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    const at::Tensor values = at::arange(10, at::kFloat).view({2, 5}) + 1.0f / 1024;  // no bf16
    const at::Tensor parameter = parameter_of(values, world->rank());
    const PartitionedParam partitioned(parameter, at::kBFloat16, world);
    EXPECT_EQ(partitioned.shape(), (std::vector<int64_t>{2, 5}));
    EXPECT_EQ(parameter.numel(), 0);
    EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(parameter.requires_grad());
    const std::vector<int64_t> sizes = {4, 4, 2};  // ceil(10 / 3) each, and what is left
    EXPECT_EQ(partitioned.piece().numel(), sizes[static_cast<size_t>(world->rank())]);
    EXPECT_TRUE(at::equal(partitioned.whole(), values.to(at::kBFloat16)));
    EXPECT_EQ(parameter.numel(), 0);
  });
}

TEST(PartitionedParam, MayHaveFewerElementsThanThereAreRanks) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    const at::Tensor values = at::tensor({3.5f});
    const at::Tensor parameter = parameter_of(values, world->rank());
    PartitionedParam partitioned(parameter, at::kFloat, world);
    EXPECT_EQ(partitioned.piece().numel(), world->rank() == 0 ? 1 : 0);
    partitioned.gather(parameter);
    EXPECT_TRUE(at::equal(parameter.detach(), values));
    partitioned.scatter(parameter, std::nullopt);
    EXPECT_EQ(parameter.numel(), 0);
  });
}

TEST(PartitionedParam, IsWholeUntilTheLastScatter) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    const at::Tensor values = at::arange(10, at::kFloat);
    const at::Tensor parameter = parameter_of(values, world->rank());
    PartitionedParam partitioned(parameter, at::kFloat, world);
    partitioned.gather(parameter);
    partitioned.gather(parameter);
    partitioned.scatter(parameter, std::nullopt);
    EXPECT_TRUE(at::equal(parameter.detach(), values));
    partitioned.scatter(parameter, std::nullopt);
    EXPECT_EQ(parameter.numel(), 0);
  });
}

TEST(PartitionedParam, KeepsWhatTheNamedRankWroteAndNothingElse) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    const at::Tensor values = at::arange(10, at::kFloat);
    const at::Tensor parameter = parameter_of(values, world->rank());
    PartitionedParam partitioned(parameter, at::kFloat, world);
    const auto write = [&](std::optional<int> written_by) {
      partitioned.gather(parameter);
      parameter.detach().add_(100 * (world->rank() + 1));
      partitioned.scatter(parameter, written_by);
    };
    write(std::nullopt);
    EXPECT_TRUE(at::equal(partitioned.whole(), values));
    write(1);
    EXPECT_TRUE(at::equal(partitioned.whole(), values + 200));
  });
}

TEST(PartitionedParam, TakesThePiecesThatAUnitHolds) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const test::ThreeParams model(policy_of_stage(3, dtype, kThreeRanks), {.states = 2}, world);
      for (size_t param = 0; param < kShapes.size(); ++param) {
        const PartitionedParam partitioned(*model.sharded->units()[0], param, world);
        const layout::Range piece = kPieces[param][static_cast<size_t>(world->rank())];
        const at::Tensor values = numbers(param).to(dtype);
        EXPECT_EQ(partitioned.shape(), kShapes[param]);
        EXPECT_TRUE(at::equal(partitioned.piece(), values.view({-1}).narrow(0, piece.begin, piece.numel())));
        EXPECT_TRUE(at::equal(partitioned.whole(), values));
      }
    }
  });
}

TEST(PartitionedParam, TakesTheBytesOfAUnitInTheDtypeOfItsParameter) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    const at::Tensor bytes = at::arange(100, at::kByte).add_(150).view({25, 4});  // of bf16 that is not a number, too
    for (const at::ScalarType dtype : {at::kByte, at::kBFloat16, at::kInt}) {
      const at::Tensor parameter = bytes.clone().view(dtype);
      const std::vector<int64_t> shape = parameter.sizes().vec();
      const std::vector<NamedParam> params = {{{.name = "w", .storage = layout::Storage::kBytes}, parameter}};
      Policy policy = policy_of_stage(3, at::kFloat, kThreeRanks);
      policy.compute_dtype = at::kByte;
      Unit unit("u", params, {}, policy, groups_of(world, 3), nullptr);
      unit.release();
      PartitionedParam partitioned(unit, 0, world);
      EXPECT_EQ(partitioned.shape(), shape);
      EXPECT_EQ(partitioned.piece().scalar_type(), dtype);
      const std::vector<size_t> sizes = {64, 36, 0};  // shards of whole 32 bytes
      EXPECT_EQ(partitioned.piece().nbytes(), sizes[static_cast<size_t>(world->rank())]);
      partitioned.gather(parameter);
      EXPECT_EQ(parameter.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(parameter.view(at::kByte), bytes));
      partitioned.scatter(parameter, std::nullopt);
    }
  });
}

TEST(PartitionedParam, GivesItsPieceUpToWhoeverTakesIt) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    const at::Tensor parameter = parameter_of(at::arange(10, at::kFloat), world->rank());
    PartitionedParam partitioned(parameter, at::kFloat, world);
    EXPECT_TRUE(at::equal(partitioned.take(), at::arange(10, at::kFloat)));
    EXPECT_FALSE(partitioned.piece().defined());
    EXPECT_THROW(partitioned.gather(parameter), Error);
  });
}

TEST(PartitionedParam, OutlivesTheUnit) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    std::optional<PartitionedParam> partitioned;
    {
      const test::ThreeParams model(policy_of_stage(3, at::kFloat, kThreeRanks), {.states = 2}, world);
      partitioned.emplace(*model.sharded->units()[0], 1, world);
    }
    EXPECT_TRUE(at::equal(partitioned->whole(), numbers(1)));
  });
}

// Some of the model's parameters are there and some in pieces: see NamedParam::has_values.
TEST(Units, TakeValuesOfRankZeroWhereThereAreAnyAndOthersFromFill) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    const at::Tensor here = parameter_of(numbers(0), world->rank());
    const at::Tensor placeholder = parameter_of(numbers(1), world->rank());
    const PartitionedParam partitioned(placeholder, at::kFloat, world);
    const std::vector<NamedParam> params = {
        {{.name = "here"}, here}, {.spec = {.name = "in pieces"}, .tensor = placeholder, .shape = kShapes[1]}};
    for (const int stage : {0, 3}) {
      const Unit unit("u", params, {.states = 2}, policy_of_stage(stage, at::kFloat, kThreeRanks),
                      groups_of(world, stage), [&](const std::string& name, const at::Tensor& value) {
                        EXPECT_EQ(name, "in pieces");
                        value.copy_(partitioned.whole());
                      });
      EXPECT_TRUE(at::equal(here.detach(), numbers(0)));
      EXPECT_TRUE(at::equal(placeholder.detach(), numbers(1)));
    }
  });
}

}  // namespace
}  // namespace tessera::zero::partitioned_param_test
