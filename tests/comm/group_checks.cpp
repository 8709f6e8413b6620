#include "tests/comm/communicator_checks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tessera/comm/communicator.h"

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

      at::Tensor slice = at::empty({slice_numel}, place);
      world->start_reduce_scatter(slice, input(world->rank(), numel), 0.5, "a").finish();
      EXPECT_TRUE(at::equal(slice.cpu(), sum.narrow(0, world->rank() * slice_numel, slice_numel)));

      at::Tensor reduced = input(world->rank(), numel);
      world->start_all_reduce(reduced, 0.5, "b").finish();
      EXPECT_TRUE(at::equal(reduced.cpu(), sum));

      at::Tensor full = at::zeros({numel}, place);
      world->start_all_gather(full, slice, "c").finish();
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
  if (world->rank() == 1) kill(getpid(), SIGKILL);
  at::Tensor full = at::empty({4 * world->size()});
  world->start_all_gather(full, at::zeros({4}), "layers.0").finish();
}

}  // namespace tessera::test
