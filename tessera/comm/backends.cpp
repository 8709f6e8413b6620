#include "tessera/comm/backends.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/shm/shm_exchange.h"
#include "tessera/comm/store/store_texts.h"
#include "tessera/comm/two_level_exchange.h"

namespace tessera::comm {
namespace {

// Nothing unless ranks count host by host, and every host has as many.
std::optional<int> ranks_a_host(const std::vector<std::string>& hosts) {
  const auto first_elsewhere =
      std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return host != hosts[0]; });
  const auto each = static_cast<size_t>(first_elsewhere - hosts.begin());
  if (hosts.size() % each != 0) return std::nullopt;
  std::set<std::string> seen;
  for (size_t begin = 0; begin < hosts.size(); begin += each) {
    if (!seen.insert(hosts[begin]).second) return std::nullopt;
    for (size_t rank = begin; rank < begin + each; ++rank) {
      if (hosts[rank] != hosts[begin]) return std::nullopt;
    }
  }
  return static_cast<int>(each);
}

// Shared memory within each host. Null, on every rank, where one host refuses; the refusal is of the first that did.
std::unique_ptr<Exchange> join_hosts(const BackendInput& input, int ranks_a_host, shm::Refusal& refusal) {
  const World& world = input.world;
  const int host = world.rank / ranks_a_host;
  c10d::PrefixStore store(fmt::format("host {}", host), input.store);
  auto within =
      shm::join_host(store, host * ranks_a_host, world.rank % ranks_a_host, ranks_a_host, input.timeout, refusal);
  const StartStep step{"two levels", "did not join its host's shared memory", fmt::format("rank {}", world.rank)};
  for (const std::string& reason :
       exchange_texts_at_start(*input.store, step, world.rank, world.size, refusal.reason, input.timeout)) {
    if (reason.empty()) continue;
    refusal.reason = reason;
    return nullptr;
  }
  return within;
}

// Null, and the refusal, on every rank where hosts cannot be joined so.
std::unique_ptr<Exchange> try_levels(const BackendInput& input, MakeExchange make_between, shm::Refusal& refusal) {
  const World& world = input.world;
  const auto each = ranks_a_host(shm::hosts_of_ranks(*input.store, world.rank, world.size, input.timeout));
  if (!each) {
    refusal = {"hosts have different numbers of ranks, or ranks are not numbered host by host", /*expected=*/true};
    return nullptr;
  }
  if (*each == 1) return make_between(input);
  auto within = join_hosts(input, *each, refusal);
  if (within) log_debug("shared memory within each host: {} of {} ranks", *each, world.size);
  if (!within || *each == world.size) return within;
  return make_two_level_exchange(std::move(within), make_between(input), {world.rank, world.size, *each},
                                 input.timeout);
}

template <MakeExchange make_between>
std::unique_ptr<Exchange> make_levels(const BackendInput& input) {
  shm::Refusal refusal;
  auto exchange = try_levels(input, make_between, refusal);
  if (!exchange) throw Error(ErrorKind::kMachine, {refusal.reason, "TESSERA_BACKEND", "use auto, gloo or mpi"});
  return exchange;
}

}  // namespace

Registry<MakeExchange> backends() {
  static constexpr Registry<MakeExchange>::Entry kEntries[] = {
      {"gloo", "TCP between any hosts, CPU tensors (part of LibTorch)", make_gloo_exchange},
      {"mpi", "the fabric of the mpirun that started the ranks, CPU tensors (OpenMPI or MPICH)", make_mpi_exchange},
      {"shm", "shared memory between the ranks of one host, CPU tensors", make_shm_exchange},
      {"shm+gloo", "shared memory within each host, gloo between hosts", make_levels<make_gloo_exchange>},
      {"shm+mpi", "shared memory within each host, MPI between hosts", make_levels<make_mpi_exchange>},
  };
  return {"communication backend", kEntries};
}

std::unique_ptr<Exchange> make_exchange(const std::string& backend, const BackendInput& input) {
  if (backend != "auto") return backends().find(backend, "TESSERA_BACKEND").make(input);
  shm::Refusal refusal;
  if (auto exchange = try_levels(input, make_gloo_exchange, refusal)) return exchange;
  if (!refusal.expected && input.world.rank == 0)
    log_warning("{}; falling back to gloo, which is slower", refusal.reason);
  return make_gloo_exchange(input);
}

std::unique_ptr<Exchange> make_shm_exchange(const BackendInput& input) {
  shm::Refusal refusal;
  auto exchange = shm::join(*input.store, input.world.rank, input.world.size, input.timeout, refusal);
  if (!exchange) {
    throw Error(ErrorKind::kMachine, {refusal.reason, "TESSERA_BACKEND=shm", "use auto, which falls back to gloo"});
  }
  return exchange;
}

}  // namespace tessera::comm
