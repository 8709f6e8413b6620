// A world larger than any that the tests start: 512 ranks, constructed one after the other in this process over a
// transport that reaches nobody. Who shares what with whom, what each rank has of it and how many bytes that is, and
// what it would send, against the formulas of ZeRO's paper (Rajbhandari et al. 2020). No numbers are computed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "tessera/comm/connection.h"
#include "tessera/comm/exchange.h"
#include "tessera/comm/mesh.h"
#include "tessera/zero/sharded_model.h"
#include "tessera/zero/wire_bytes.h"

namespace tessera::zero::many_ranks_test {
namespace {

using layout::kContextAxis;
using layout::kExpertAxis;
using layout::kPipelineAxis;
using layout::kReplicateAxis;
using layout::kShardAxis;
using layout::kTensorAxis;
using Axes = std::vector<layout::Axis>;

constexpr int kRanks = 512;

class NoExchange : public comm::Exchange {
 public:
  PendingPtr all_gather(const at::Tensor&, const at::Tensor&, uint64_t) override { return refuse(); }
  PendingPtr reduce_scatter(const at::Tensor&, const at::Tensor&, double, uint64_t, int64_t) override {
    return refuse();
  }
  PendingPtr all_to_all(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&, uint64_t) override {
    return refuse();
  }
  PendingPtr broadcast(const at::Tensor&, int, uint64_t) override { return refuse(); }
  PendingPtr send(const at::Tensor&, int, uint64_t) override { return refuse(); }
  PendingPtr receive(const at::Tensor&, int, uint64_t) override { return refuse(); }
  std::unique_ptr<Exchange> among(const std::vector<int>&) const override { return std::make_unique<NoExchange>(); }

 private:
  static PendingPtr refuse() { throw std::logic_error("there is nobody to exchange anything with"); }
};

std::shared_ptr<comm::Group> world_of(int rank) {
  static const auto store = c10::make_intrusive<c10d::HashStore>();
  static const std::shared_ptr<comm::Group::Connection> connection(
      new comm::Group::Connection{store, std::chrono::seconds(1), comm::WaitBoard(store, 0, kRanks)});
  return std::make_shared<comm::Group>(comm::World{.rank = rank, .local_rank = rank % 8, .size = kRanks}, connection,
                                       std::make_shared<NoExchange>());
}

std::shared_ptr<comm::Mesh> mesh_of(int rank, const Axes& axes) {
  return std::make_shared<comm::Mesh>(world_of(rank), layout::MeshShape(axes));
}

const std::vector<Axes> kMeshes = {
    {{kShardAxis, 512}},
    {{kReplicateAxis, 64}, {kShardAxis, 8}},
    {{kShardAxis, 64}, {kExpertAxis, 8}},
    {{kPipelineAxis, 4}, {kReplicateAxis, 2}, {kShardAxis, 8}, {kContextAxis, 2}, {kTensorAxis, 4}},
};

// Of the axes that are named.
int product(const Axes& axes, const std::set<std::string>& names) {
  int size = 1;
  for (const layout::Axis& axis : axes) size *= names.contains(axis.name) ? axis.size : 1;
  return size;
}

TEST(ManyRanks, GroupsAlongEachAxisAndOfEachPurposePartitionTheWorld) {
  const std::set<std::string> data = {kReplicateAxis, kShardAxis, kExpertAxis, kContextAxis};
  const std::set<std::string> model = {kPipelineAxis, kTensorAxis, kExpertAxis};
  for (const Axes& axes : kMeshes) {
    std::map<std::string, std::set<std::vector<int>>> found;  // groups, by what they are for
    std::map<std::string, int> sizes;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto mesh = mesh_of(rank, axes);
      std::map<std::string, std::shared_ptr<comm::Group>> groups = {{"data", mesh->data_group()},
                                                                    {"batch", mesh->batch_group()},
                                                                    {"parts", mesh->part_group()},
                                                                    {"replicas", mesh->replica_group()}};
      for (const layout::Axis& axis : axes) groups[axis.name] = mesh->group({axis.name});
      for (const auto& [purpose, group] : groups) {
        ASSERT_EQ(group->members().at(static_cast<size_t>(group->rank())), rank) << purpose;
        found[purpose].insert(group->members());
      }
    }
    sizes = {{"data", product(axes, data)},
             {"batch", product(axes, data) / product(axes, {kContextAxis})},
             {"parts", product(axes, model)},
             {"replicas", product(axes, data) / product(axes, {kExpertAxis})}};
    for (const layout::Axis& axis : axes) sizes[axis.name] = axis.size;
    for (const auto& [purpose, groups] : found) {
      EXPECT_EQ(static_cast<int>(groups.size()), kRanks / sizes.at(purpose)) << purpose;
      std::vector<int> seen(kRanks);
      for (const std::vector<int>& members : groups) {
        EXPECT_EQ(static_cast<int>(members.size()), sizes.at(purpose)) << purpose;
        for (const int member : members) ++seen[static_cast<size_t>(member)];
      }
      EXPECT_EQ(seen, std::vector<int>(kRanks, 1)) << purpose;
    }
  }
}

// Declared, not there until `fill` is asked: so nobody has to be sent anything.
NamedParam declared(layout::ParamSpec spec, const std::vector<int64_t>& own_shape) {
  at::Tensor tensor = at::empty({0}, at::kFloat);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(own_shape);
  return {.spec = std::move(spec), .tensor = tensor.requires_grad_(true)};
}

std::shared_ptr<ShardedModel> model_of(std::vector<NamedParam> params, const Policy& policy,
                                       const std::shared_ptr<comm::Mesh>& mesh) {
  return ShardedModel::create({{"model", std::move(params)}}, {.states = 2}, policy, mesh,
                              [](const std::string&, const at::Tensor& value) { value.zero_(); });
}

// How many ranks update each element of each global tensor, and how many write it into a checkpoint.
struct Owners {
  std::map<std::string, std::vector<int>> updated, saved;

  void add(const Unit& unit) {
    const int rank = unit.groups().all->rank();
    for (size_t param = 0; param < unit.params().size(); ++param) {
      add(unit, param, unit.owned(), updated);
      if (unit.params()[param].counts) add(unit, param, unit.saved_by(rank), saved);
    }
  }

 private:
  static void add(const Unit& unit, size_t param, const layout::Range& range,
                  std::map<std::string, std::vector<int>>& counts) {
    const NamedParam& own = unit.params()[param];
    const std::vector<int64_t>& shape = own.spec.shape;
    std::vector<int>& count = counts[own.name()];
    count.resize(static_cast<size_t>(c10::multiply_integers(shape)));
    const layout::Range part = unit.layout().part_of(param, range);
    for (int64_t i = part.begin; i < part.end; ++i) {  // of the flattened box, two-dimensional here
      const int64_t row = own.box.offset[0] + i / own.box.extent[1], column = own.box.offset[1] + i % own.box.extent[1];
      ++count[static_cast<size_t>(row * shape[1] + column)];
    }
  }
};

TEST(ManyRanks, EachElementIsUpdatedByOneRankOfEachReplicaAndSavedByOneOfAll) {
  const Axes axes = {{kPipelineAxis, 2}, {kReplicateAxis, 2}, {kShardAxis, 8}, {kContextAxis, 2}, {kTensorAxis, 8}};
  for (int stage = 1; stage <= 3; ++stage) {
    Owners owners;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto mesh = mesh_of(rank, axes);
      const bool last = mesh->coordinate(kTensorAxis) == 7;  // has what the others leave of 91 rows, 12 each
      std::vector<NamedParam> params;
      params.push_back(declared({.name = "rows", .shape = {91, 7}, .shards = {{kTensorAxis, 0}}}, {last ? 7 : 12, 7}));
      params.push_back(declared({.name = "columns", .shape = {9, 80}, .shards = {{kTensorAxis, 1}}}, {9, 10}));
      params.push_back(declared({.name = "whole", .shape = {11, 3}}, {11, 3}));
      const auto model = model_of(std::move(params), policy_of_stage(stage, at::kBFloat16, kRanks), mesh);
      for (const auto& unit : model->units()) owners.add(*unit);
    }
    // Over the pipeline's axis all have each, two replicas; over the tensor axis all have the last.
    const std::map<std::string, int> holders = {{"rows", 2 * 2}, {"columns", 2 * 2}, {"whole", 2 * 2 * 8}};
    for (const auto& [name, count] : owners.updated) {
      EXPECT_EQ(count, std::vector<int>(count.size(), holders.at(name))) << name << ", stage " << stage;
    }
    for (const auto& [name, count] : owners.saved) {
      EXPECT_EQ(count, std::vector<int>(count.size(), 1)) << name << ", stage " << stage;
    }
    EXPECT_EQ(owners.saved.size(), 3u);
  }
}

constexpr int64_t kParams = 32 * 4096;  // no padding over any number of ranks here

std::shared_ptr<ShardedModel> plain_model(int rank, const Axes& axes, int stage) {
  return model_of({declared({.name = "w"}, {kParams})}, policy_of_stage(stage, at::kBFloat16, kRanks),
                  mesh_of(rank, axes));
}

// Section 3.1 and figure 1, K = 12: 16, 4 + 12 / n, 2 + 14 / n and 16 / n bytes a parameter in mixed precision.
TEST(ManyRanks, BytesOfEachRankAreThePapers) {
  for (const auto& [axes, shards] : {std::pair(kMeshes[0], 512), std::pair(kMeshes[1], 8)}) {
    const std::vector<int64_t> expected = {16 * kParams, 4 * kParams + 12 * kParams / shards,
                                           2 * kParams + 14 * kParams / shards, 16 * kParams / shards};
    for (int rank = 0; rank < kRanks; rank += 73) {  // the first and the last among them
      for (int stage = 0; stage <= 3; ++stage) {
        const auto model = plain_model(rank, axes, stage);
        EXPECT_EQ(model->model_state_bytes().memory, expected[static_cast<size_t>(stage)])
            << "rank " << rank << ", stage " << stage << ", shards " << shards;
      }
    }
  }
}

// Section 7: a rank sends 2 P elements a step, at stage 3 three, as it gathers for forward and for backward; each times
// (n - 1) / n, which the paper leaves out.
TEST(ManyRanks, WhatEachRankSendsIsThePapers) {
  const int64_t once = 2 * kParams / kRanks * (kRanks - 1);  // of 16 bits
  for (const int rank : {0, 255, 511}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const auto model = plain_model(rank, kMeshes[0], stage);
      const WireBytes bytes = wire_bytes(*model->units().front(), model->policy());
      EXPECT_EQ(2 * bytes.gather + bytes.publish + bytes.reduce, (stage == 3 ? 3 : 2) * once) << stage;
    }
    // 64 replicas of 8 shards each: stage 3 among the eight, and an all-reduce of each shard over the replicas.
    const auto model = plain_model(rank, kMeshes[1], 3);
    const WireBytes bytes = wire_bytes(*model->units().front(), model->policy());
    const int64_t among_eight = 2 * kParams / 8 * 7;
    EXPECT_EQ(bytes.gather, among_eight);
    EXPECT_EQ(bytes.reduce, among_eight + 2 * (2 * kParams / 8 / 64 * 63));
  }
}

}  // namespace
}  // namespace tessera::zero::many_ranks_test
