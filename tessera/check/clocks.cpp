#include "tessera/check/clocks.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/base/fault_point.h"
#include "tessera/base/format.h"

namespace tessera::check {
namespace {

constexpr int kTrips = 8;
constexpr const char* kLabel = "time of day";

int64_t time_of_day() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  constexpr int64_t kFaultNanoseconds = 5'000'000'000;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() +
         (fault_asked("clock") ? kFaultNanoseconds : 0);
}

std::vector<RoundTrip> ask(comm::Group& world, int rank) {
  std::vector<RoundTrip> trips;
  at::Tensor answer = at::zeros({1}, at::kLong);
  for (int i = 0; i < kTrips; ++i) {
    RoundTrip trip{.asked = time_of_day()};
    world.start_send(at::zeros({1}, at::kLong), rank, kLabel).finish();
    world.start_receive(answer, rank, kLabel).finish();
    trip.answered = time_of_day();
    trip.told = answer.item<int64_t>();
    trips.push_back(trip);
  }
  return trips;
}

void answer(comm::Group& world) {
  at::Tensor question = at::zeros({1}, at::kLong);
  for (int i = 0; i < kTrips; ++i) {
    world.start_receive(question, 0, kLabel).finish();
    world.start_send(at::zeros({1}, at::kLong).fill_(time_of_day()), 0, kLabel).finish();
  }
}

}  // namespace

ClockOffset offset_of(int rank, std::span<const RoundTrip> trips) {
  const auto length = [](const RoundTrip& trip) { return trip.answered - trip.asked; };
  const RoundTrip& best = *std::min_element(
      trips.begin(), trips.end(), [&](const RoundTrip& a, const RoundTrip& b) { return length(a) < length(b); });
  const double half = static_cast<double>(length(best)) / 2;
  return {
      .rank = rank, .seconds = (static_cast<double>(best.told - best.asked) - half) / 1e9, .uncertainty = half / 1e9};
}

Findings judge_clocks(const std::vector<ClockOffset>& clocks, const std::vector<HostCard>& cards) {
  Findings found;
  for (const ClockOffset& clock : clocks) {
    if (std::abs(clock.seconds) - clock.uncertainty <= kMostClockOffset) continue;
    found.push_back({Finding::Kind::kWarning, "clocks",
                     fmt::format("the clock of {} is {} {} that of {}", cards[static_cast<size_t>(clock.rank)].host,
                                 format_duration(std::chrono::duration<double>(std::abs(clock.seconds))),
                                 clock.seconds > 0 ? "ahead of" : "behind", cards[0].host),
                     "set both by one server (timedatectl set-ntp true): times of logs and of files mislead, and "
                     "make and rsync take old files for new"});
  }
  return found;
}

std::vector<ClockOffset> compare_clocks(comm::Group& world, const std::vector<HostCard>& cards) {
  std::vector<ClockOffset> clocks;
  for (const int rank : first_ranks(cards)) {
    if (rank == 0) continue;
    if (world.rank() == 0) clocks.push_back(offset_of(rank, ask(world, rank)));
    if (world.rank() == rank) answer(world);
    world.barrier(kLabel);  // the others wait for one host's trips at most
  }
  return clocks;
}

}  // namespace tessera::check
