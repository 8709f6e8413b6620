#include "tessera/check/collectives.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <fmt/format.h>

#include <optional>

#include "tessera/base/fault_point.h"

namespace tessera::check {
namespace {

constexpr int64_t kNumels[] = {7, 64 << 10};  // of a rank's part
constexpr int kMostRoots = 4;

// What a rank contributes: whole numbers below 2^24 / 10^4, so that sums over as many ranks are exact in fp32.
at::Tensor values(int64_t numel, int rank) {
  return at::arange(numel, at::kLong).remainder(89).mul(rank % 13 + 1).add(rank % 101).to(at::kFloat);
}

// Of a whole whose part p is values(numel, p), for each of `size` ranks.
at::Tensor values_of_all(int64_t numel, int size) {
  at::Tensor whole = at::empty({size * numel}, at::kFloat);
  for (int part = 0; part < size; ++part) whole.narrow(0, part * numel, numel).copy_(values(numel, part));
  return whole;
}

// What a sum over ranks of values(numel, rank) has to be.
at::Tensor sum_of_values(int64_t numel, int size) {
  at::Tensor sum = values(numel, 0).to(at::kDouble);
  for (int rank = 1; rank < size; ++rank) sum += values(numel, rank).to(at::kDouble);
  return sum.to(at::kFloat);
}

// "element 7 is 12 instead of 15"; empty where all are right.
std::string difference(const at::Tensor& found, const at::Tensor& expected, std::optional<int64_t> part_numel = {}) {
  const at::Tensor wrong = at::nonzero(found.ne(expected));
  if (wrong.numel() == 0) return "";
  const int64_t index = wrong[0].item<int64_t>();
  const std::string of = part_numel ? fmt::format(", of what rank {} sent,", index / *part_numel) : "";
  return fmt::format("element {}{} is {} instead of {} ({} of {} are wrong)", index, of, found[index].item<float>(),
                     expected[index].item<float>(), wrong.size(0), found.numel());
}

// What tests can damage.
at::Tensor damaged(const char* name, at::Tensor result) {
  if (fault_asked(name)) result[result.numel() / 2] += 1;
  return result;
}

std::string all_reduce(comm::Group& world, int64_t numel) {
  at::Tensor buffer = values(numel * world.size(), world.rank());
  world.start_all_reduce(buffer, 1, "check").finish();
  return difference(damaged("all-reduce", buffer), sum_of_values(numel * world.size(), world.size()));
}

std::string all_gather(comm::Group& world, int64_t numel) {
  const at::Tensor full = at::empty({numel * world.size()}, at::kFloat);
  const at::Tensor own = values(numel, world.rank());
  world.start_all_gather(full, damaged("all-gather", own), "check").finish();
  return difference(full, values_of_all(numel, world.size()), numel);
}

// Rank r gives part p the values of rank r + p, so that each rank's sum is another.
std::string reduce_scatter(comm::Group& world, int64_t numel) {
  at::Tensor full = at::empty({numel * world.size()}, at::kFloat);
  for (int part = 0; part < world.size(); ++part) {
    full.narrow(0, part * numel, numel).copy_(values(numel, world.rank() + part));
  }
  at::Tensor expected = values(numel, world.rank()).to(at::kDouble);
  for (int rank = 1; rank < world.size(); ++rank) expected += values(numel, rank + world.rank()).to(at::kDouble);
  const at::Tensor shard = at::empty({numel}, at::kFloat);
  world.start_reduce_scatter(shard, full, 1, "check").finish();
  return difference(damaged("reduce-scatter", shard), expected.to(at::kFloat));
}

std::string broadcast(comm::Group& world, int64_t numel) {
  std::string wrong;
  for (int root = 0; root < std::min(world.size(), kMostRoots); ++root) {
    at::Tensor buffer = world.rank() == root ? values(numel, root) : at::empty({numel}, at::kFloat).fill_(-1);
    world.start_broadcast(buffer, root, "check").finish();
    const std::string found = difference(damaged("broadcast", buffer), values(numel, root));
    if (wrong.empty() && !found.empty()) wrong = fmt::format("of rank {}: {}", root, found);
  }
  return wrong;
}

struct Collective {
  const char* name;
  std::string (*check)(comm::Group& world, int64_t numel);
};

constexpr Collective kCollectives[] = {{"all-reduce", all_reduce},
                                       {"all-gather", all_gather},
                                       {"reduce-scatter", reduce_scatter},
                                       {"broadcast", broadcast}};

// The first rank whose result is wrong, by what each rank says; nothing where none is.
std::optional<Finding> judge(const char* name, const std::vector<std::string>& told,
                             const std::vector<HostCard>& cards) {
  std::optional<Finding> finding;
  int wrong = 0;
  for (size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].empty()) continue;
    ++wrong;
    if (finding) continue;
    finding = Finding{Finding::Kind::kProblem, "collectives",
                      fmt::format("the {} is wrong, first on {}: {}", name, rank_name(cards[rank]), told[rank]),
                      "try TESSERA_BACKEND=gloo; if that is right, the memory that the ranks share or the fabric is at "
                      "fault, else the network or the memory of a host (memtest)"};
  }
  if (finding) finding->what += fmt::format("; on {} of {} ranks", wrong, told.size());
  return finding;
}

}  // namespace

std::vector<CollectiveResult> check_collectives(comm::Group& world, const std::vector<HostCard>& cards,
                                                Findings& found) {
  std::vector<CollectiveResult> results;
  for (const auto& [name, check] : kCollectives) {
    std::string wrong;
    for (const int64_t numel : kNumels) {
      if (const std::string of_size = check(world, numel); wrong.empty()) wrong = of_size;
    }
    const auto finding = judge(name, world.exchange_texts(wrong, name), cards);
    if (finding) found.push_back(*finding);
    results.push_back({.name = name, .right = !finding});
  }
  return results;
}

}  // namespace tessera::check
