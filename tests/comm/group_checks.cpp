#include "tests/comm/group_checks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/mesh.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::test {
namespace {

// What rank r puts in: distinct, not representable sums in bf16, so that order and rounding show.
at::Tensor input_of(int rank, int64_t numel, at::ScalarType dtype) {
  return (at::arange(numel, at::kFloat) * 0.37f + static_cast<float>(rank) * 1.01f).to(dtype);
}

// The formula: sum in rank order in fp32, scale, round once.
at::Tensor ordered_sum_of(int size, int64_t numel, at::ScalarType dtype, double scale) {
  at::Tensor sum = at::zeros({numel}, at::kFloat);
  for (int rank = 0; rank < size; ++rank) sum = sum + input_of(rank, numel, dtype).to(at::kFloat);
  return (sum * static_cast<float>(scale)).to(dtype);
}

}  // namespace

void collectives_agree_with_their_formulas(World world) {
  collectives_of_device_agree_with_their_formulas(std::move(world), at::kCPU);
}

void collectives_of_device_agree_with_their_formulas(World world, at::Device device) {
  const int size = world->size();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t slice_numel : {int64_t{1}, int64_t{33}, int64_t{70001}}) {
      const int64_t numel = slice_numel * size;
      const at::Tensor sum = ordered_sum_of(size, numel, dtype, 0.5);
      const auto input = [&](int rank, int64_t count) { return input_of(rank, count, dtype).to(device); };
      const auto place = at::TensorOptions(device).dtype(dtype);

      at::Tensor shard = at::empty({slice_numel}, place);
      world->start_reduce_scatter(shard, input(world->rank(), numel), 0.5, "a").finish();
      EXPECT_TRUE(at::equal(shard.cpu(), sum.narrow(0, world->rank() * slice_numel, slice_numel)));

      at::Tensor reduced = input(world->rank(), numel);
      world->start_all_reduce(reduced, 0.5, "b").finish();
      EXPECT_TRUE(at::equal(reduced.cpu(), sum));

      at::Tensor full = at::zeros({numel}, place);
      world->start_all_gather(full, shard, "c").finish();
      EXPECT_TRUE(at::equal(full.cpu(), sum));

      at::Tensor sent = input(world->rank(), slice_numel);
      world->start_broadcast(sent, size - 1, "d").finish();
      EXPECT_TRUE(at::equal(sent.cpu(), input_of(size - 1, slice_numel, dtype)));

      std::vector<at::Tensor> incoming, outgoing;
      for (int peer = 0; peer < size; ++peer) {
        incoming.push_back(at::zeros({slice_numel}, place));
        outgoing.push_back(input(world->rank() * size + peer, slice_numel));
      }
      world->start_all_to_all(incoming, outgoing, "e").finish();
      for (int peer = 0; peer < size; ++peer) {
        EXPECT_TRUE(at::equal(incoming[peer].cpu(), input_of(peer * size + world->rank(), slice_numel, dtype)));
      }
      if (size < 2 || world->rank() > 1) continue;
      at::Tensor message = world->rank() == 0 ? input(7, slice_numel) : at::zeros({slice_numel}, place);
      if (world->rank() == 0) world->start_send(message, 1, "f").finish();
      if (world->rank() == 1) world->start_receive(message, 0, "f").finish();
      EXPECT_TRUE(at::equal(message.cpu(), input_of(7, slice_numel, dtype)));
    }
  }
}

namespace {

// One collective of one group, under way.
struct UnderWay {
  std::shared_ptr<comm::Group> group;  // outlives the collective
  comm::Collective collective;
  at::Tensor result, expected;
  std::vector<at::Tensor> kept{};
};

// Of the whole: small integers, so that every sum is exact. `group` tells the groups of a rank apart.
at::Tensor whole_of(int world_rank, int group, int64_t numel) {
  return at::arange(numel, at::kFloat).remainder_(13) + static_cast<float>(17 * world_rank + group);
}

UnderWay start_one(std::shared_ptr<comm::Group> group, int number) {
  constexpr int64_t kShard = 33;
  const int size = group->size(), rank = group->rank();
  const int64_t numel = kShard * size;
  const int own = group->members()[static_cast<size_t>(rank)];
  UnderWay under_way{.group = group, .collective = {}, .result = at::zeros({numel}), .expected = at::zeros({numel})};
  const std::string label = "of group " + std::to_string(number);
  if (number % 3 == 0) {
    for (int peer = 0; peer < size; ++peer) {
      under_way.expected.narrow(0, peer * kShard, kShard).copy_(whole_of(group->members()[peer], number, kShard));
    }
    under_way.kept = {whole_of(own, number, kShard)};
    under_way.collective = group->start_all_gather(under_way.result, under_way.kept[0], label);
    return under_way;
  }
  for (const int member : group->members()) under_way.expected += whole_of(member, number, numel);
  under_way.kept = {whole_of(own, number, numel)};
  if (number % 3 == 1) {
    under_way.expected = under_way.expected.narrow(0, rank * kShard, kShard);
    under_way.result = under_way.result.narrow(0, rank * kShard, kShard);
    under_way.collective = group->start_reduce_scatter(under_way.result, under_way.kept[0], 1, label);
    return under_way;
  }
  std::vector<at::Tensor> incoming, outgoing;
  under_way.expected = at::zeros({numel});
  for (int peer = 0; peer < size; ++peer) {
    incoming.push_back(under_way.result.narrow(0, peer * kShard, kShard));
    outgoing.push_back(whole_of(own, number, numel).narrow(0, peer * kShard, kShard));
    const at::Tensor theirs = whole_of(group->members()[peer], number, numel);
    under_way.expected.narrow(0, peer * kShard, kShard).copy_(theirs.narrow(0, rank * kShard, kShard));
  }
  under_way.collective = group->start_all_to_all(incoming, outgoing, label);
  return under_way;
}

void groups_of_one_mesh(const World& ranks, const layout::MeshShape& shape) {
  comm::Mesh mesh(ranks, shape);
  std::vector<UnderWay> under_way;
  for (const std::vector<std::string>& axes : std::vector<std::vector<std::string>>{
           {"a"}, {"b"}, {"c"}, {"a", "b"}, {"b", "c"}, {"a", "c"}, {"a", "b", "c"}}) {
    const auto group = mesh.group(axes);
    EXPECT_EQ(group->members(), shape.members(ranks->rank(), axes));
    under_way.push_back(start_one(group, static_cast<int>(under_way.size())));
  }
  for (size_t step = 0; step < under_way.size(); ++step) {
    UnderWay& next = under_way[(step + static_cast<size_t>(ranks->rank())) % under_way.size()];
    next.collective.finish();
    EXPECT_TRUE(at::equal(next.result, next.expected)) << next.group->name();
  }
}

}  // namespace

void groups_of_every_mesh_exchange_at_once(World world) {
  for (int count = 1; count <= world->size(); ++count) {
    if (world->rank() >= count) continue;
    std::vector<int> first(static_cast<size_t>(count));
    std::iota(first.begin(), first.end(), 0);
    const World ranks = world->subgroup(first, "first " + std::to_string(count));
    for (int a = 1; a <= count; ++a) {
      for (int b = 1; b <= count / a; ++b) {
        if (count % (a * b) != 0) continue;
        groups_of_one_mesh(ranks, layout::MeshShape({{"a", a}, {"b", b}, {"c", count / (a * b)}}));
      }
    }
  }
}

void texts_come_in_rank_order(World world) {
  const auto texts = world->exchange_texts(world->rank() == 0 ? "" : std::to_string(world->rank()), "names");
  ASSERT_EQ(static_cast<int>(texts.size()), world->size());
  EXPECT_EQ(texts[0], "");
  if (world->size() > 1) {
    EXPECT_EQ(texts.back(), std::to_string(world->size() - 1));
  }
}

void all_gather_works_in_place(World world) {
  at::Tensor full = at::full({6}, -1.0f);
  at::Tensor own = full.narrow(0, world->rank() * 3, 3);
  own.fill_(world->rank() + 1.0f);
  world->start_all_gather(full, own, "in place").finish();
  EXPECT_TRUE(at::equal(full, at::tensor({1.f, 1.f, 1.f, 2.f, 2.f, 2.f})));
}

// Stage 3's gathers and the reductions of backward may interleave differently on each rank.
void channels_may_interleave_differently(World world) {
  const auto reductions = world->with_channel("reduce");
  at::Tensor a = at::full({4}, 1.0f + world->rank());
  at::Tensor full = at::empty({8});
  if (world->rank() == 0) {
    auto reducing = reductions->start_all_reduce(a, 1, "x");
    auto gathering = world->start_all_gather(full, at::full({4}, 7.0f), "x");
    gathering.finish();
    reducing.finish();
  } else {
    auto gathering = world->start_all_gather(full, at::full({4}, 8.0f), "x");
    auto reducing = reductions->start_all_reduce(a, 1, "x");
    reducing.finish();
    gathering.finish();
  }
  EXPECT_TRUE(at::equal(a, at::full({4}, 3.0f)));
  EXPECT_EQ(full[0].item<float>(), 7.0f);
  EXPECT_EQ(full[7].item<float>(), 8.0f);
}

void messages_between_two_ranks_come_in_order(World world) {
  at::Tensor first = at::full({4}, 1.0f);
  at::Tensor second = at::full({4}, 2.0f);
  if (world->rank() == 2) {
    auto a = world->start_send(first, 0, "activations");
    auto b = world->start_send(second, 0, "activations");
    a.finish();
    b.finish();
  } else if (world->rank() == 0) {
    at::Tensor got_first = at::empty({4});
    at::Tensor got_second = at::empty({4});
    auto a = world->start_receive(got_first, 2, "activations");
    auto b = world->start_receive(got_second, 2, "activations");
    b.finish();
    a.finish();
    EXPECT_TRUE(at::equal(got_first, first));
    EXPECT_TRUE(at::equal(got_second, second));
  }
}

void ranks_diverge(World world) {
  at::Tensor full = at::empty({4 * world->size()});
  const std::string unit = world->rank() == 0 ? "layers.3" : "layers.4";
  world->start_all_gather(full, at::zeros({4}), unit).finish();
}

void rank_1_dies(World world) {
  world->barrier("all are there");  // or it might die while others still connect to it
  if (world->rank() == 1) kill(getpid(), SIGKILL);
  at::Tensor full = at::empty({4 * world->size()});
  world->start_all_gather(full, at::zeros({4}), "layers.0").finish();
}

}  // namespace tessera::test
