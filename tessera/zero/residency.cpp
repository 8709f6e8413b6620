#include "tessera/zero/residency.h"

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::zero {

Residency::Residency(const Units& units, std::vector<bool> persistent, const config::ResidencyOptions& options,
                     int shards)
    : units_(units),
      persistent_(std::move(persistent)),
      options_(options),
      shards_(shards),
      holders_(units.size(), 0) {}

void Residency::hold(const std::vector<size_t>& units, Unit::Values values) {
  int64_t comes = 0;
  for (const size_t unit : units) {
    if (units_[unit]->state() != UnitState::kSharded && !units_[unit]->has(values)) evict(unit);
    if (holders_[unit]++ == 0 && units_[unit]->state() == UnitState::kSharded) comes += units_[unit]->layout().numel();
  }
  make_room(comes, /*distance=*/0);
  for (const size_t unit : units) units_[unit]->start_gather(values);
  for (const size_t unit : units) units_[unit]->finish_gather();
}

void Residency::hold_in_turn(const std::vector<size_t>& units) {
  hold(units);
  for (const size_t unit : units) order_.gathered(unit);
  prefetch();
}

// What comes next travels while the present units compute: from the disk, or between ranks.
void Residency::prefetch() {
  int64_t left = options_.prefetch_bucket_size, distance = 0;
  for (const size_t index : order_.upcoming()) {
    Unit& unit = *units_[index];
    const int64_t numel = unit.layout().numel();
    distance += numel;
    if (unit.state() == UnitState::kGathered) continue;
    left -= numel;
    if (left < 0) return;
    if (unit.state() == UnitState::kGathering) continue;
    if (unit.compute().swapped()) {
      unit.start_fetch();
    } else if (shards_ > 1) {
      if (!make_room(numel, distance)) return;
      unit.start_gather();
    }
  }
}

void Residency::end_pass() {
  order_.end_pass();
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    units_[unit]->forget_fetch();
    if (!persistent_[unit]) evict(unit);
  }
}

// For each unit how many elements are used before it is used again.
std::vector<int64_t> Residency::distances() const {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> distances(units_.size(), kNever);
  int64_t passed = 0;
  for (const size_t unit : order_.upcoming()) {
    if (distances[unit] == kNever) distances[unit] = passed;
    passed += units_[unit]->layout().numel();
  }
  return distances;
}

// Evicts units that nobody holds until `numel` more elements may be unsharded, those first that are used last, and none
// that is used within `distance`. False where that is not enough.
bool Residency::make_room(int64_t numel, int64_t distance) {
  std::vector<size_t> idle;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!units_[unit]->shards_parameters() || units_[unit]->state() == UnitState::kSharded) continue;
    numel += units_[unit]->layout().numel();
    if (holders_[unit] == 0) idle.push_back(unit);
  }
  if (numel <= options_.max_live_parameters) return true;
  const std::vector<int64_t> until = distances();
  std::sort(idle.begin(), idle.end(), [&until](size_t a, size_t b) { return until[a] > until[b]; });
  for (const size_t unit : idle) {
    if (numel <= options_.max_live_parameters || until[unit] < distance) break;
    numel -= units_[unit]->layout().numel();
    evict(unit);
  }
  return numel <= options_.max_live_parameters;
}

void Residency::drop(size_t unit) {
  TESSERA_INVARIANT(holders_[unit] > 0);
  if (--holders_[unit] > 0) return;
  if (persistent_[unit] || distances()[unit] < options_.max_reuse_distance) {
    make_room(0, /*distance=*/0);
  } else {
    evict(unit);
  }
}

void Residency::drop_and_evict(const std::vector<size_t>& units) {
  for (const size_t unit : units) {
    --holders_[unit];
    evict(unit, Unit::Views::kKeepBytes);
  }
}

void Residency::evict(size_t unit, Unit::Views views) {
  if (holders_[unit] > 0 || units_[unit]->state() == UnitState::kSharded) return;
  units_[unit]->finish_gather();
  units_[unit]->release(views);
}

void Residency::evict_all() {
  for (size_t unit = 0; unit < units_.size(); ++unit) evict(unit);
}

void Residency::forget_holders() { std::fill(holders_.begin(), holders_.end(), 0); }

}  // namespace tessera::zero
