// Hand arithmetic on units of round sizes.
#include "tessera/plan/offload_traffic.h"

#include <gtest/gtest.h>

namespace tessera::plan::offload_traffic_test {
namespace {

using enum OffloadTo;
using config::Dtype;

constexpr int64_t kMi = 1 << 20;
constexpr int64_t kLargestTile = 8 * kMi;  // of zero/policy.h

ModelCensus model_of(const std::vector<int64_t>& units) {
  ModelCensus model;
  for (const int64_t numel : units) {
    model.units.push_back({"unit", numel, numel});
    model.params += numel;
  }
  return model;
}

// bf16 with fp32 master weights and two moments: 12 bytes of them and a gradient of 2.
TrainingSetup on_nvme(int stage) {
  TrainingSetup setup{.stage = stage, .optimizer = kNvme};
  setup.dtypes = {.compute = Dtype::kBf16, .grad = Dtype::kBf16, .reduce = Dtype::kBf16};
  return setup;
}

TEST(OffloadTraffic, WithoutOffloadThereIsNone) {
  TrainingSetup setup = on_nvme(3);
  setup.optimizer = kNone;
  const OffloadTraffic traffic = offload_traffic(model_of({100, 100}), setup);
  EXPECT_EQ(traffic.optimizer_numel + traffic.params_bytes, 0);
  EXPECT_EQ(traffic.tile_bytes + traffic.gradient_bytes + traffic.param_bytes, 0);
}

TEST(OffloadTraffic, ATileIsAUnitsSliceOrTheLargestTile) {
  TrainingSetup setup = on_nvme(2);
  setup.ranks = 2;
  EXPECT_EQ(offload_traffic(model_of({2 * kMi, 4 * kMi}), setup).tile_bytes, 14 * 2 * kMi);
  EXPECT_EQ(offload_traffic(model_of({20 * kMi, 4 * kMi}), setup).tile_bytes, 14 * kLargestTile);
  setup.elementwise = false;
  EXPECT_EQ(offload_traffic(model_of({20 * kMi, 4 * kMi}), setup).tile_bytes, 14 * 10 * kMi);
  setup.elementwise = true;
  setup.sub_group_size = 5000;  // elements; tiles begin at multiples of 2048
  EXPECT_EQ(offload_traffic(model_of({20 * kMi, 4 * kMi}), setup).tile_bytes, 14 * 4096);
}

TEST(OffloadTraffic, EachSlotGrowsToTheLargestTileThatUsesIt) {
  TrainingSetup setup = on_nvme(2);
  setup.pipeline_read = true;  // two slots, in turn
  EXPECT_EQ(offload_traffic(model_of({6 * kMi, 2 * kMi, kMi, kMi}), setup).tile_bytes, 14 * (6 + 2) * kMi);
  EXPECT_EQ(offload_traffic(model_of({6 * kMi}), setup).tile_bytes, 14 * 6 * kMi);
  setup.pipeline_write = true;
  EXPECT_EQ(offload_traffic(model_of({6 * kMi, 2 * kMi, kMi, kMi}), setup).tile_bytes, 14 * (6 + 2 + 1) * kMi);
  setup.optimizer_buffers = 20;  // four slots of weight, gradient, compute weight and two moments
  EXPECT_EQ(offload_traffic(model_of({6 * kMi, 2 * kMi, kMi, kMi}), setup).tile_bytes, 14 * 10 * kMi);
}

TEST(OffloadTraffic, WholeGradientsStayInMemoryAtStage1) {
  const OffloadTraffic traffic = offload_traffic(model_of({4 * kMi}), on_nvme(1));
  EXPECT_EQ(traffic.tile_bytes, 12 * 4 * kMi);
  EXPECT_EQ(traffic.gradient_bytes, 0);
}

TEST(OffloadTraffic, GradientsLeaveNeighbourByNeighbour) {
  EXPECT_EQ(offload_traffic(model_of({9 * kMi, 2 * kMi, 3 * kMi, 3 * kMi}), on_nvme(2)).gradient_bytes, 2 * 11 * kMi);
  TrainingSetup half = on_nvme(3);
  half.optimizer_ratio = 0.5;  // the first unit alone
  EXPECT_EQ(offload_traffic(model_of({9 * kMi, 2 * kMi, 3 * kMi, 3 * kMi}), half).gradient_bytes, 2 * 9 * kMi);
}

TEST(OffloadTraffic, ParametersComeInAsFarAheadAsBuffersAndPrefetchingAllow) {
  TrainingSetup setup = on_nvme(3);
  setup.params = kNvme;
  setup.max_in_cpu = 0;
  const ModelCensus model = model_of({10 * kMi, 4 * kMi, 4 * kMi, 4 * kMi, kMi});
  setup.param_buffers = 3;
  EXPECT_EQ(offload_traffic(model, setup).param_bytes, 2 * (10 + 4 + 4) * kMi);
  setup.prefetch_bucket_size = 7 * kMi;
  EXPECT_EQ(offload_traffic(model, setup).param_bytes, 2 * (10 + 4) * kMi);
  setup.prefetch_bucket_size = 0;
  EXPECT_EQ(offload_traffic(model, setup).param_bytes, 2 * 10 * kMi);
}

// In 16 bits the compute weight is written beside the master weight, in fp32 it is read and written itself.
TEST(OffloadTraffic, ParametersOnNvmeGoThroughTheTilesToo) {
  TrainingSetup setup{.stage = 3, .params = kNvme, .max_in_cpu = 0};
  EXPECT_EQ(offload_traffic(model_of({4 * kMi}), setup).tile_bytes, 4 * 4 * kMi);
  setup = on_nvme(3);
  setup.params = kNvme;
  setup.max_in_cpu = 4 * kMi;  // the first unit
  EXPECT_EQ(offload_traffic(model_of({4 * kMi, 2 * kMi}), setup).tile_bytes, (14 * 4 + 2 * 2) * kMi);
}

}  // namespace
}  // namespace tessera::plan::offload_traffic_test
