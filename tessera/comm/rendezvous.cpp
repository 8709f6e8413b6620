#include "tessera/comm/rendezvous.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tessera/base/abandonable_thread.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/open_files.h"
#include "tessera/base/run_secret.h"
#include "tessera/base/slurm_step.h"
#include "tessera/comm/backends.h"
#include "tessera/comm/connection.h"
#include "tessera/comm/group.h"
#include "tessera/comm/mpi/library.h"
#include "tessera/comm/mpi/meeting.h"
#include "tessera/comm/nccl/device_links.h"
#include "tessera/comm/own_address.h"
#include "tessera/comm/staged_exchange.h"
#include "tessera/comm/store/bounded_store.h"
#include "tessera/comm/store/run_store.h"
#include "tessera/comm/store/store_listener.h"
#include "tessera/comm/store/store_server.h"
#include "tessera/comm/store/store_texts.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

// How one launcher says who a process is, and how many there are on this host.
struct RankVariables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  bool is_mpirun;
};

constexpr RankVariables kRankVariables[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    {"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
};

bool says_who_and_of_how_many(const RankVariables& names) {
  return env_text(names.rank).has_value() && env_text(names.size).has_value();
}

constexpr size_t kMpich = 2;

std::string backend_of(const InitOptions& options) {
  return options.backend.empty() ? env_text("TESSERA_BACKEND").value_or("auto") : options.backend;
}

constexpr const char* kRankOrder = "rank_order";

std::string sums_of_devices() { return env_choice("TESSERA_NCCL_SUMS", {"nccl", kRankOrder}).value_or("nccl"); }

bool connects_by_mpi(const InitOptions& options) { return strcasecmp(backend_of(options).c_str(), "mpi") == 0; }

// Empty: to be found out through MPI.
std::string master_addr_of(const RankVariables& names, int size, const InitOptions& options) {
  if (const auto addr = env_text("MASTER_ADDR")) return *addr;
  const std::string launcher = names.launcher;
  if (connects_by_mpi(options)) return "";
  if (names.is_mpirun) {
    if (mpi::has_plugin_of_launcher()) return "";
    if (env_int(names.local_size) == size) return "127.0.0.1";
    throw Error(
        ErrorKind::kUsage,
        {fmt::format("MASTER_ADDR is not set, and Tessera's plugin for {}, through which rank 0 would tell where "
                     "it is, cannot be loaded",
                     launcher),
         "ranks of mpirun on several hosts",
         "give mpirun MASTER_ADDR=<host of rank 0> for every rank, or build Tessera where mpicc is on PATH"});
  }
  throw Error(ErrorKind::kUsage,
              {"MASTER_ADDR is not set, so the ranks cannot find each other", "the environment set by " + launcher,
               "export MASTER_ADDR=<host of rank 0>, or start the ranks with mpirun, which needs no address"});
}

std::optional<int64_t> number_within(const char* name, int64_t lowest, int64_t highest) {
  const std::optional<int64_t> value = env_int(name);
  if (!value || (*value >= lowest && *value <= highest)) return value;
  throw Error(ErrorKind::kUsage, {fmt::format("{} is {}", name, *value), "the environment",
                                  fmt::format("use a number from {} to {}", lowest, highest)});
}

// A year: what is added to the time of now stays a time.
constexpr std::chrono::seconds kLongestTimeout{31'536'000};

std::optional<std::chrono::seconds> timeout_of_environment() {
  const auto number = number_within("TESSERA_TIMEOUT", 1, kLongestTimeout.count());
  return number ? std::optional(std::chrono::seconds(*number)) : std::nullopt;
}

milliseconds timeout_of(const InitOptions& options) {
  if (options.timeout.count() > 0) return std::min<milliseconds>(options.timeout, kLongestTimeout);
  return timeout_of_environment().value_or(std::chrono::seconds(600));
}

bool all_ranks_are_here(const World& world) {
  return is_loopback(world.master_addr) || world.master_addr == "localhost" || world.local_size == world.size;
}

constexpr int64_t kMostRanks = 1'000'000;

// What a rank may have open: files of its own, and of each other rank connections for the store and for gloo.
constexpr uint64_t kOpenFiles = 64;
constexpr uint64_t kOpenFilesOfARank = 8;

// How much longer than its time LibTorch's client may take, before it is taken for one that never returns.
constexpr milliseconds kMoment{5'000};

// torchrun's agent serves a store of LibTorch's, whose client waits without a limit for something that accepts
// connections and does not speak.
c10::intrusive_ptr<c10d::Store> open_store_of_torchrun(const World& world, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.timeout = timeout;
  const std::string place = fmt::format("{}:{}", world.master_addr, world.master_port);
  const auto store = std::make_shared<c10::intrusive_ptr<c10d::TCPStore>>();
  AbandonableThread thread;
  try {
    const auto make = [=, host = world.master_addr] { *store = c10::make_intrusive<c10d::TCPStore>(host, options); };
    if (thread.run(make, timeout + kMoment)) return c10::make_intrusive<BoundedStore>(*store, place, timeout);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error(ErrorKind::kPeer, {fmt::format("rank {} could not reach torchrun's rendezvous: {}", world.rank,
                                               text.substr(0, text.find('\n'))),
                                   place, "check that torchrun is running, and check MASTER_ADDR and MASTER_PORT"});
  }
  throw Error(ErrorKind::kPeer,
              {fmt::format("rank {} was connected to torchrun's rendezvous, which did not answer within {}", world.rank,
                           format_duration(timeout)),
               place, "check that torchrun is not stopped, and that no other service has its port (MASTER_PORT)"});
}

// What rank 0 serves. `secret`: empty where the run has none.
c10::intrusive_ptr<RunStore> open_store_of_rank_0(const World& world, const std::string& secret, milliseconds timeout) {
  StorePlace place{.host = world.master_addr, .port = world.master_port, .secret = secret, .rank = world.rank};
  if (world.rank != 0) return c10::make_intrusive<RunStore>(std::move(place), timeout);
  StoreListener listener = listen_for_ranks(place.host, place.port, all_ranks_are_here(world));
  place.port = listener.port;
  if (secret.empty() && listener.reach != StoreListener::Reach::kLoopback) {
    log_warning("this run has no secret: whoever reaches {} can join it (TESSERA_SECRET_FILE, docs/security.md)",
                place.text());
  }
  auto server = std::make_shared<StoreServer>(std::move(listener.socket), place.text(), secret, world.size);
  place.host = listener.own_host;
  return c10::make_intrusive<RunStore>(std::move(place), timeout, std::move(server));
}

// Nobody said where rank 0 is, but MPI connects the ranks already, and hands the secret on as well.
c10::intrusive_ptr<c10d::Store> open_store_through_mpi(World& world, milliseconds timeout) {
  mpi::Meeting meeting(world, timeout);
  const bool one_host = meeting.is_one_host();
  if (world.rank == 0) {
    std::string secret = run_secret();
    if (secret.empty()) secret = make_run_secret();
    world.master_addr = one_host ? "127.0.0.1" : host_name();
    world.master_port = 0;  // any that is free
    auto store = open_store_of_rank_0(world, secret, timeout);
    world.master_port = store->place().port;
    meeting.text_of_rank_0(fmt::format("{} {} {}", world.master_addr, world.master_port, secret));
    return store;
  }
  std::istringstream told(meeting.text_of_rank_0(""));
  std::string secret;
  told >> world.master_addr >> world.master_port >> secret;
  return open_store_of_rank_0(world, secret, timeout);
}

// What a rank says of itself when it joins, a line each; what has to be the same before anything else can be compared
// (agreement.h): the others would wait for a connection that it makes in another way, or not at all.
std::string facts_of_joining(const World& world, const std::string& backend) {
  return fmt::format("{} of Tessera\nWORLD_SIZE={}\nTESSERA_BACKEND={}\nTESSERA_NCCL_SUMS={}", TESSERA_VERSION,
                     world.size, backend, sums_of_devices());
}

void require_same_facts(const std::vector<std::string>& facts, const std::string& place) {
  for (size_t rank = 1; rank < facts.size(); ++rank) {
    std::istringstream expected(facts[0]);
    std::istringstream found(facts[rank]);
    for (std::string one, other; std::getline(expected, one) && std::getline(found, other);) {
      if (one == other) continue;
      throw Error(ErrorKind::kUsage, {fmt::format("rank 0 runs with {}, and rank {} with {}", one, rank, other), place,
                                      "start all ranks with the same program and the same environment"});
    }
  }
}

void wait_for_everybody(c10d::Store& store, const World& world, const std::string& place, const std::string& facts,
                        milliseconds timeout) {
  const StartStep step{.name = "joined",
                       .missed = "did not join the run",
                       .where = fmt::format("{}, a run of {} ranks", place, world.size)};
  require_same_facts(exchange_texts_at_start(store, step, world.rank, world.size, facts, timeout), place);
}

// `store`, whose calls all end.
std::shared_ptr<Group> join(const World& world, c10::intrusive_ptr<c10d::Store> bounded, const std::string& name,
                            const InitOptions& options, c10::intrusive_ptr<c10d::Backend> group_of_torch = {}) {
  const milliseconds timeout = timeout_of(options);
  const std::string backend = backend_of(options);
  const std::string place =
      world.master_port > 0 ? fmt::format("{}:{}", world.master_addr, world.master_port) : kStoreOfTorch;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, std::move(bounded));
  wait_for_everybody(*store, world, place, facts_of_joining(world, backend), timeout);
  auto links = std::make_shared<nccl::DeviceLinks>(
      store,
      nccl::DeviceLinks::Options{world.rank, timeout, sums_of_devices() == kRankOrder, std::move(group_of_torch)});
  std::shared_ptr<Exchange> exchange =
      make_staged_exchange(make_exchange(backend, {store, world, timeout}), world.rank, world.size, std::move(links));
  log_debug("joined a world of {} as '{}'", world.size, name);
  std::shared_ptr<Group::Connection> connection(
      new Group::Connection{store, timeout, WaitBoard(store, world.rank, world.size)});
  return std::make_shared<Group>(world, std::move(connection), std::move(exchange));
}

void require_open_files_of(const World& world) {
  require_open_files(kOpenFiles + kOpenFilesOfARank * static_cast<uint64_t>(world.size));
}

const RankVariables* variables_of_launcher() {
  for (const RankVariables& names : kRankVariables) {
    if (says_who_and_of_how_many(names)) return &names;
  }
  for (const RankVariables& names : kRankVariables) {
    if (env_text(names.rank) || env_text(names.size)) return &names;
  }
  return nullptr;
}

World world_of_step(const SlurmStep& step) {
  return {.rank = step.rank,
          .local_rank = step.local_rank,
          .size = step.tasks,
          .local_size = step.local_tasks,
          .master_addr = step.master_addr,
          .master_port = step.master_port};
}

World world_of(const RankVariables& names, const InitOptions& options) {
  const auto rank = env_int(names.rank);
  const auto size = env_int(names.size);
  if (!rank || !size) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("{} is set but {} is not", rank ? names.rank : names.size, rank ? names.size : names.rank),
                 "the environment", "set both, or neither for a single-process run"});
  }
  if (*size < 1 || *size > kMostRanks || *rank < 0 || *rank >= *size) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("{}={} is out of range for {}={}", names.rank, *rank, names.size, *size),
                 "the environment", "ranks are numbered from 0 to world size - 1"});
  }
  World world{.rank = static_cast<int>(*rank), .local_rank = static_cast<int>(*rank), .size = static_cast<int>(*size)};
  if (world.size == 1) return world;
  world.local_rank = static_cast<int>(number_within(names.local_rank, 0, world.size - 1).value_or(world.rank));
  world.local_size = static_cast<int>(number_within(names.local_size, 1, world.size).value_or(0));
  world.master_addr = master_addr_of(names, world.size, options);
  world.master_port = static_cast<int>(number_within("MASTER_PORT", 1, 65535).value_or(29500));
  world.store_is_running = env_text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return world;
}

// MPICH's variables come last: a step of Slurm sets them, too, for programs of MPI's.
World read_world(const InitOptions& options) {
  const RankVariables* const names = variables_of_launcher();
  if (names != nullptr && names != &kRankVariables[kMpich]) return world_of(*names, options);
  if (const auto step = slurm_step_of_environment()) return world_of_step(*step);
  return names == nullptr ? World{} : world_of(*names, options);
}

}  // namespace

World world_from_environment() { return read_world({}); }

int64_t ranks_of_this_host() {
  if (const auto told = env_int("LOCAL_WORLD_SIZE")) return *told;
  const RankVariables* const names = variables_of_launcher();
  const int64_t told = names == nullptr ? 0 : env_int(names->local_size).value_or(0);
  if (names != nullptr && names != &kRankVariables[kMpich]) return told;
  const auto step = slurm_step_of_environment();
  return step ? step->local_tasks : told;
}

std::string launcher_of_environment() {
  const RankVariables* const names = variables_of_launcher();
  if (names != nullptr && names != &kRankVariables[kMpich]) return names->launcher;
  if (is_in_slurm_step()) return "Slurm";
  return names == nullptr ? "" : names->launcher;
}

void let_rank_0_fail_first() {
  constexpr std::chrono::seconds kMpirunNotices{2};
  const auto rank = env_text("OMPI_COMM_WORLD_RANK");
  if (rank && *rank != "0") std::this_thread::sleep_for(kMpirunNotices);
}

std::shared_ptr<Group> init_distributed(const InitOptions& options) {
  return init_distributed(read_world(options), options);
}

std::shared_ptr<Group> init_distributed(const World& world, const InitOptions& options) {
  set_log_rank(world.rank, world.size);
  if (world.size == 1) return Group::alone();
  World met = world;
  const milliseconds timeout = timeout_of(options);
  const auto store = met.master_addr.empty() ? open_store_through_mpi(met, timeout) : open_store(met, timeout);
  return join(met, store, "tessera", options);
}

c10::intrusive_ptr<c10d::Store> open_store(const World& world, milliseconds timeout) {
  require_open_files_of(world);
  if (world.store_is_running) return open_store_of_torchrun(world, timeout);
  return open_store_of_rank_0(world, run_secret(), timeout);
}

c10::intrusive_ptr<c10d::Store> open_store_for_torch(const World& world, milliseconds timeout) {
  const milliseconds to_meet = std::min<milliseconds>(timeout, timeout_of_environment().value_or(kLongestTimeout));
  const auto store = open_store(world, to_meet);
  c10d::PrefixStore texts("meeting", store);
  wait_for_everybody(texts, world, fmt::format("{}:{}", world.master_addr, world.master_port),
                     facts_of_joining(world, backend_of({})), to_meet);
  store->setTimeout(timeout);
  return store;
}

std::shared_ptr<Group> connect(const World& world, c10::intrusive_ptr<c10d::Store> shared, const std::string& name,
                               const InitOptions& options, c10::intrusive_ptr<c10d::Backend> group_of_torch) {
  if (world.size == 1) return Group::alone();
  require_open_files_of(world);
  auto bounded = c10::make_intrusive<BoundedStore>(std::move(shared), kStoreOfTorch, timeout_of(options));
  return join(world, std::move(bounded), name, options, std::move(group_of_torch));
}

}  // namespace tessera::comm
