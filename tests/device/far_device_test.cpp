// The far device itself: it is as late, as forgetful and as watchful as tests of streams need it
// (support/far_device.h).
#include "tests/support/far_device.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "tests/support/far_stream_handle.h"

namespace tessera::test::far_device_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

at::TensorOptions there() { return at::TensorOptions(far_device()); }
c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(far_device().type()); }
c10::Stream new_stream() { return guard().getNewStream(far_device(), /*priority=*/0); }
c10::Stream current() { return guard().getStream(far_device()); }
at::Tensor pinned(int64_t numel) { return at::zeros({numel}, at::TensorOptions().pinned_memory(true)); }

// Holds a stream up until it is opened, as a kernel that takes long.
class Gate {
 public:
  explicit Gate(const c10::Stream& stream) {
    auto* const handle = static_cast<FarStreamHandle*>(stream.native_handle());
    handle->enqueue(handle, {.name = "gate",
                             .accesses = nullptr,
                             .count = 0,
                             .run =
                                 [](void* argument) {
                                   const std::unique_ptr<IsOpen> is_open(static_cast<IsOpen*>(argument));
                                   (*is_open)->wait(false);
                                 },
                             .argument = new IsOpen(is_open_)});
  }
  ~Gate() { open(); }
  void open() {
    *is_open_ = true;
    is_open_->notify_all();
  }

 private:
  using IsOpen = std::shared_ptr<std::atomic<bool>>;
  IsOpen is_open_ = std::make_shared<std::atomic<bool>>(false);
};

c10::Event recorded_on(const c10::Stream& stream) {
  c10::Event event(far_device().type());
  event.record(stream);
  return event;
}

class FarDevice : public testing::Test {
 protected:
  void SetUp() override {
    far_device();
    set_far_mode({.late = true, .seed = 3, .records = true});
  }
  void TearDown() override { set_far_mode({}); }
};

TEST_F(FarDevice, OperatorsRunLaterInTheOrderOfTheirStream) {
  at::Tensor values = at::full({100}, 2.0, there());
  current().synchronize();
  Gate gate(current());
  const at::Tensor doubled = values * 2;
  values.add_(1);
  const at::Tensor last = values + doubled;
  EXPECT_FALSE(current().query());
  gate.open();
  EXPECT_TRUE(at::equal(doubled.cpu(), at::full({100}, 4.0)));
  EXPECT_TRUE(at::equal(last.cpu(), at::full({100}, 7.0)));
  EXPECT_THAT(far_facts().races, IsEmpty());
}

// Of operators of every kind, and their backward: in place, views, lists, several results, indices, without arguments.
TEST_F(FarDevice, ResultsAreTheCpus) {
  const auto run = [](at::Device device) {
    const auto on = at::TensorOptions(device);
    const at::Tensor x = at::sin(at::arange(96, at::kFloat)).view({4, 3, 8}).to(device).requires_grad_();
    const at::Tensor weight = at::cos(at::arange(64, at::kFloat)).view({8, 8}).to(device).requires_grad_();
    const at::Tensor scale = at::ones({8}, on).requires_grad_(), shift = at::zeros({8}, on).requires_grad_();
    const at::Tensor ids = at::arange(12, at::kLong).remainder(4).view({4, 3}).to(device);
    at::Tensor y = at::layer_norm(at::linear(x, weight), {8}, scale, shift);
    y = at::gelu(y) + at::embedding(weight, ids);
    y = at::scaled_dot_product_attention(y, y, y);
    y = at::cat({y.slice(0, 0, 2), y.index({ids.select(1, 0)}).slice(0, 0, 2)}).transpose(1, 2).contiguous();
    const at::Tensor loss = at::cross_entropy_loss(y.reshape({4, -1}), ids.select(1, 1));
    loss.backward();
    std::vector<at::Tensor> grads = {x.grad(), weight.grad(), scale.grad(), shift.grad()};
    at::_foreach_mul_(grads, 0.5);
    const auto [largest, where] = x.detach().max(2);
    grads.insert(grads.end(), {loss.detach(), largest, where, at::_foreach_norm(grads)[0]});
    for (at::Tensor& each : grads) each = each.cpu();
    return grads;
  };
  const auto on_device = run(far_device()), on_cpu = run(at::kCPU);
  for (size_t i = 0; i < on_cpu.size(); ++i) {
    EXPECT_TRUE(at::allclose(on_device[i], on_cpu[i], 1e-5, 1e-6)) << i << "\n" << on_device[i] << on_cpu[i];
  }
  EXPECT_THAT(far_facts().races, IsEmpty());
}

TEST_F(FarDevice, TheHostWaitsForValuesAndForNothingElse) {
  const auto waits_of = [](const std::function<void()>& run) {
    const int64_t before = far_facts().host_waits;
    run();
    return far_facts().host_waits - before;
  };
  at::Tensor values = at::ones({64}, there());
  const at::Tensor memory = pinned(64), pageable = at::zeros({64});
  EXPECT_EQ(waits_of([&] { at::softmax(values.add_(1).view({8, 8}), 1).copy_(values.view({8, 8})); }), 0);
  EXPECT_EQ(waits_of([&] { memory.copy_(values, /*non_blocking=*/true); }), 0);
  EXPECT_EQ(waits_of([&] { values.copy_(memory, /*non_blocking=*/true); }), 0);
  EXPECT_EQ(waits_of([&] { memory.copy_(values); }), 1);
  EXPECT_EQ(waits_of([&] { pageable.copy_(values, /*non_blocking=*/true); }), 1);
  EXPECT_EQ(waits_of([&] { values.copy_(pageable, /*non_blocking=*/true); }), 1);
  EXPECT_EQ(waits_of([&] { values.sum().item(); }), 1);
  EXPECT_EQ(waits_of([&] { values.nonzero(); }), 1);
  EXPECT_EQ(waits_of([&] { at::equal(values, values); }), 1);
  EXPECT_EQ(waits_of([&] { current().synchronize(); }), 1);
  EXPECT_EQ(waits_of([&] { recorded_on(current()).synchronize(); }), 1);
}

TEST_F(FarDevice, CopiesOfPinnedMemoryReadItLate) {
  at::Tensor from = pinned(10), to = pinned(10);
  const at::Tensor values = at::zeros({10}, there());
  current().synchronize();
  Gate gate(current());
  values.copy_(from, /*non_blocking=*/true);
  to.copy_(values, /*non_blocking=*/true);
  from.fill_(5);  // too early, so that it shows
  EXPECT_EQ(to.sum().item<float>(), 0);
  from.reset();  // the copy holds it
  gate.open();
  current().synchronize();
  EXPECT_EQ(to.sum().item<float>(), 50);
}

TEST_F(FarDevice, PinnedMemoryIsCounted) {
  const FarFacts before = far_facts();
  const at::Tensor plain = at::ones({100});
  EXPECT_FALSE(plain.is_pinned());
  at::Tensor made = pinned(100), copied = plain.pin_memory();
  EXPECT_TRUE(made.is_pinned() && copied.is_pinned() && copied.slice(0, 50).is_pinned());
  EXPECT_TRUE(at::equal(copied, plain));
  EXPECT_EQ(far_facts().pinned_bytes, before.pinned_bytes + 800);
  EXPECT_EQ(far_facts().pinned_allocations, before.pinned_allocations + 2);
  made.reset();
  copied.reset();
  EXPECT_EQ(far_facts().pinned_bytes, before.pinned_bytes);
  EXPECT_GE(far_facts().most_pinned_bytes, before.pinned_bytes + 800);
}

bool all_nan(const at::Tensor& values) { return values.cpu().isnan().all().item<bool>(); }

// What a stream still does with memory that was freed there comes before what the next owner does.
TEST_F(FarDevice, FreedMemoryIsGivenOutAgainInTheOrderOfItsStream) {
  at::Tensor first = at::full({1000}, 3.0, there());
  const void* const address = first.data_ptr();
  Gate gate(current());
  const at::Tensor sum = first.sum();
  first.reset();
  const at::Tensor second = at::empty({1000}, there());
  EXPECT_EQ(second.data_ptr(), address);
  const at::Tensor as_it_was = second.clone();
  gate.open();
  EXPECT_EQ(sum.item<float>(), 3000);
  EXPECT_TRUE(all_nan(as_it_was));
  EXPECT_THAT(far_facts().races, IsEmpty());
}

TEST_F(FarDevice, MemoryOfOneStreamIsNotGivenToAnother) {
  at::Tensor first = at::full({1000}, 3.0, there());
  const void* const address = first.data_ptr();
  first.reset();
  const c10::StreamGuard on_other(new_stream());
  EXPECT_NE(at::empty({1000}, there()).data_ptr(), address);
}

// Another stream reads what is freed and written to by the next owner: late, and without an event.
TEST_F(FarDevice, UseAfterFreeOnAnotherStreamShowsAndIsReported) {
  at::Tensor first = at::full({1000}, 3.0, there());
  const c10::Stream other = new_stream();
  recorded_on(current()).block(other);
  Gate gate(other);
  at::Tensor copied;
  {
    const c10::StreamGuard on_other(other);
    copied = first.clone();
  }
  first.reset();
  current().synchronize();
  EXPECT_THAT(far_facts().races, ElementsAre(AllOf(HasSubstr("'free' on stream 0 writes"), HasSubstr("'copy_'"))));
  gate.open();
  other.synchronize();
  EXPECT_TRUE(all_nan(copied));
}

TEST_F(FarDevice, MemoryRecordedForAnotherStreamIsKeptForIt) {
  at::Tensor first = at::full({1000}, 3.0, there());
  const void* const address = first.data_ptr();
  const c10::Stream other = new_stream();
  recorded_on(current()).block(other);
  Gate gate(other);
  at::Tensor copied;
  {
    const c10::StreamGuard on_other(other);
    copied = first.clone();
  }
  first.record_stream(other);
  first.reset();
  EXPECT_NE(at::empty({1000}, there()).data_ptr(), address);
  gate.open();
  other.synchronize();
  EXPECT_EQ(at::empty({1000}, there()).data_ptr(), address);
  EXPECT_TRUE(at::equal(copied.cpu(), at::full({1000}, 3.0)));
  EXPECT_THAT(far_facts().races, IsEmpty());
}

// Doubles on another stream and adds up here. `waits`: of each for the other, as it should be.
std::vector<std::string> races_of(const std::function<void(c10::Event&, const c10::Stream&)>& first,
                                  const std::function<void(c10::Event&, const c10::Stream&)>& second) {
  at::Tensor values = at::ones({32}, there());
  const c10::Stream own = current(), other = new_stream();
  c10::Event ready = recorded_on(own);
  first(ready, other);
  {
    const c10::StreamGuard on_other(other);
    values.mul_(2);
  }
  c10::Event done = recorded_on(other);
  second(done, own);
  values.sum();
  return far_facts().races;
}

TEST_F(FarDevice, AnEventThatIsWaitedForOrders) {
  const auto waits = [](c10::Event& event, const c10::Stream& stream) { event.block(stream); };
  EXPECT_THAT(races_of(waits, waits), IsEmpty());
  EXPECT_THAT(far_facts().new_waits, ElementsAre(Field(&FarWait::number, 1), Field(&FarWait::number, 2)));
}

TEST_F(FarDevice, SoDoesTheHostThatWaits) {
  const auto waits = [](c10::Event& event, const c10::Stream& stream) { event.block(stream); };
  const auto by_host = [](c10::Event& event, const c10::Stream&) { event.synchronize(); };
  const auto asks = [](c10::Event& event, const c10::Stream&) {
    while (!event.query()) std::this_thread::yield();
  };
  EXPECT_THAT(races_of(waits, by_host), IsEmpty());
  EXPECT_THAT(races_of(by_host, asks), IsEmpty());
}

TEST_F(FarDevice, AMissingWaitIsReportedThoughItWentWell) {
  const auto waits = [](c10::Event& event, const c10::Stream& stream) { event.block(stream); };
  const auto another_thread_asks = [](c10::Event& event, const c10::Stream&) {
    std::thread([&] {
      while (!event.query()) std::this_thread::yield();
    }).join();
  };
  EXPECT_THAT(races_of(waits, another_thread_asks),
              ElementsAre(AllOf(HasSubstr("'aten::sum' on stream 0 reads 128 bytes"), HasSubstr("'aten::mul'"),
                                HasSubstr("has written, in 128 bytes"))));
}

TEST_F(FarDevice, PinnedMemoryThatTwoStreamsUseIsReportedToo) {
  const at::Tensor memory = pinned(16), values = at::ones({16}, there());
  memory.copy_(values, /*non_blocking=*/true);
  const c10::StreamGuard on_other(new_stream());
  at::empty({16}, there()).copy_(memory, /*non_blocking=*/true);
  EXPECT_THAT(far_facts().races, ElementsAre(HasSubstr("'copy_' on stream 0 has written, in 64 bytes")));
}

TEST_F(FarDevice, EachWaitAndEachRecordCanBeLeftOut) {
  const auto waits = [](c10::Event& event, const c10::Stream& stream) { event.block(stream); };
  for (const int64_t number : {1, 2}) {
    set_far_mode({.late = true, .records = true, .drop_wait = number});
    EXPECT_THAT(races_of(waits, waits), Not(IsEmpty())) << number;
    EXPECT_EQ(far_facts().waits, 2);
    set_far_mode({.late = true, .records = true, .drop_record = number});
    EXPECT_THAT(races_of(waits, waits), Not(IsEmpty())) << number;
    EXPECT_EQ(far_facts().records, 2);
  }
  set_far_mode({.late = true, .records = true, .drop_wait = 3});
  EXPECT_THAT(races_of(waits, waits), IsEmpty());
}

// Late streams make the numbers wrong, too.
TEST_F(FarDevice, AWaitThatIsLeftOutShowsInTheNumbers) {
  const auto sum = [](int64_t drop_wait) {
    set_far_mode({.late = true, .drop_wait = drop_wait});
    at::Tensor values = at::ones({32}, there());
    const c10::Stream own = current(), other = new_stream();
    recorded_on(own).block(other);
    Gate gate(other);
    {
      const c10::StreamGuard on_other(other);
      values.mul_(2);
    }
    recorded_on(other).block(own);
    const at::Tensor total = values.sum();
    if (drop_wait == 2) current().synchronize();
    gate.open();
    return total.item<float>();
  };
  EXPECT_EQ(sum(0), 64);
  EXPECT_EQ(sum(2), 32);
}

TEST_F(FarDevice, AnErrorOfAnOperatorComesWithTheNextWait) {
  const pid_t child = fork();
  if (child == 0) {
    at::Tensor found = at::ones({3}, there()).index({at::full({1}, 7, there().dtype(at::kLong))});
    try {
      current().synchronize();
    } catch (const std::exception& error) {
      _exit(std::strstr(error.what(), "out of bounds") != nullptr ? 7 : 1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST_F(FarDevice, AProcessThatEndsWithRacesFails) {
  const pid_t child = fork();
  if (child == 0) {
    const at::Tensor values = at::ones({4}, there());
    const c10::StreamGuard on_other(new_stream());
    values.sum();
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 66);
}

}  // namespace
}  // namespace tessera::test::far_device_test
