#include "tessera/launch/remote_commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/shell.h"
#include "tessera/launch/core_binding.h"
#include "tessera/launch/program_path.h"

namespace tessera::launch {
namespace {

using Words = std::vector<std::string>;

constexpr int kPdshFanOut = 1024;

void append(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

Words host_names(const std::vector<HostSlots>& hosts) {
  Words names;
  for (const HostSlots& host : hosts) names.push_back(host.host);
  return names;
}

std::string joined(const Words& words) { return fmt::format("{}", fmt::join(words, ",")); }

Words given_arguments(const RemoteRun& run) { return shell_words(run.request.launcher_args, "--launcher_args"); }

// What each rank executes where the launcher numbers the ranks: no --local_rank, which only launch.py can know.
Words rank_words(const RemoteRun& run) {
  RankProgram program = run.request.program;
  program.passes_local_rank = false;
  return command_of(program, 0);
}

bool is_module(const RankProgram& program) {
  return !program.interpreter.empty() && program.interpreter.back() == "-m";
}

std::string counts_text(const std::vector<HostSlots>& hosts) {
  Words counts;
  for (const HostSlots& host : hosts) counts.push_back(fmt::format("{} has {}", host.host, host.slots.size()));
  return fmt::format("{}", fmt::join(counts, ", "));
}

bool slots_are_equal(const std::vector<HostSlots>& hosts) {
  return std::all_of(hosts.begin(), hosts.end(),
                     [&](const HostSlots& host) { return host.slots.size() == hosts.front().slots.size(); });
}

std::string slots_per_host(const RemoteRun& run) { return std::to_string(run.pool.front().slots.size()); }

// With the address of rank 0 where it is known: the ranks then need nothing but the launcher's own variables.
Exports exports_with_address(const RemoteRun& run) {
  Exports exports = run.exports;
  if (run.request.master_addr.empty()) return exports;
  set_export(exports, "MASTER_ADDR", run.request.master_addr);
  set_export(exports, "MASTER_PORT", std::to_string(run.request.master_port));
  return exports;
}

// "-x NAME=value" each.
Words export_words(const Exports& exports, const char* option) {
  Words words;
  for (const auto& [name, value] : exports) append(words, {option, name + "=" + value});
  return words;
}

// How the program is called, as options of a launcher.
Words form_options(const RankProgram& program) {
  Words options;
  if (program.interpreter.empty()) options.emplace_back("--no_python");
  if (is_module(program)) options.emplace_back("--module");
  if (!program.passes_local_rank) options.emplace_back("--no_local_rank");
  return options;
}

// The options of launch.py, which the launcher that pdsh starts takes.
Words node_options(const RemoteRun& run) {
  const LaunchRequest& request = run.request;
  Words options = form_options(request.program);
  if (request.bind_cores_to_rank) options.emplace_back("--bind_cores_to_rank");
  if (!request.bind_core_list.empty()) options.push_back("--bind_core_list=" + request.bind_core_list);
  if (request.save_pid) options.emplace_back("--save_pid");
  if (request.save_pid && run.launcher_pid > 0) options.push_back(std::to_string(run.launcher_pid));
  options.push_back("--enable_each_rank_log=" +
                    (request.enable_each_rank_log.empty() ? "None" : request.enable_each_rank_log));
  return options;
}

// A shell on the other side reads the words again, so each is quoted whole: DeepSpeed's double quotes would have it
// expand what is inside.
RemoteCommand pdsh_command(const RemoteRun& run) {
  const LaunchRequest& request = run.request;
  Words reach = {"pdsh", "-S", "-f", std::to_string(kPdshFanOut), "-w", joined(host_names(run.hosts))};
  append(reach, given_arguments(run));
  std::string setup = request.venv_script.empty() ? "" : "source " + shell_quote(request.venv_script) + "; ";
  for (const auto& [name, value] : run.exports) setup += "export " + name + "=" + value + "; ";
  RemoteCommand command{.arguments = reach, .environment = {{"PDSH_RCMD_TYPE", "ssh"}}, .end = reach};
  if (request.ssh_port > 0) {
    const std::string port = fmt::format("-p {}", request.ssh_port);
    command.environment["PDSH_SSH_ARGS_APPEND"] =
        run.pdsh_ssh_arguments.empty() ? port : run.pdsh_ssh_arguments + " " + port;
  }
  append(command.arguments, {setup, "cd " + shell_quote(run.folder) + ";"});
  Words launch = run.node_launcher;
  append(launch, {"--world_info=" + run.world_info, "--node_rank=%n", "--master_addr=" + request.master_addr,
                  "--master_port=" + std::to_string(request.master_port)});
  append(launch, node_options(run));
  launch.push_back(request.program.name);
  append(launch, request.program.arguments);
  // %n is pdsh's: the index of the host.
  for (const std::string& word : launch)
    command.arguments.push_back(word == "--node_rank=%n" ? word : shell_quote(word));
  // The first letter in brackets, so that the pattern does not find the shell that looks for it.
  command.end.push_back("pkill -TERM -f '[-]-world_info=" + run.world_info + "'");
  return command;
}

RemoteCommand openmpi_command(const RemoteRun& run) {
  Words words = {"mpirun", "-n",     std::to_string(rank_count(run.pool)), "-hostfile", run.hostfile, "--mca",
                 "btl",    "^openib"};
  const Words given = given_arguments(run);
  if (std::find(given.begin(), given.end(), "btl_tcp_if_include") == given.end()) {
    append(words, {"--mca", "btl_tcp_if_include", "eth0"});
  }
  append(words, given);
  append(words, export_words(exports_with_address(run), "-x"));
  append(words, rank_words(run));
  return {.arguments = words};
}

// Of MPICH and Intel MPI, whose ranks find the world's size and address in the environment.
Words world_words(const RemoteRun& run) {
  return {"-genv", "MASTER_ADDR", run.request.master_addr,
          "-genv", "MASTER_PORT", std::to_string(run.request.master_port),
          "-genv", "WORLD_SIZE",  std::to_string(rank_count(run.pool)),
          "-genv", "LOCAL_SIZE",  slots_per_host(run)};
}

RemoteCommand mpich_command(const RemoteRun& run) {
  const LaunchRequest& request = run.request;
  Words words = {"mpirun", "-n", std::to_string(rank_count(run.pool)), "-ppn", slots_per_host(run)};
  append(words, given_arguments(run));
  append(words, export_words(run.exports, "-genv"));
  append(words, world_words(run));
  append(words, {"-hosts", joined(host_names(run.pool))});
  if (run.rank_starter.empty()) {
    append(words, rank_words(run));
    return {.arguments = words};
  }
  append(words, run.rank_starter);
  append(words, {"--launcher", "mpich"});
  if (is_module(request.program)) words.emplace_back("--module");
  if (request.program.interpreter.empty()) words.emplace_back("--no_python");
  if (request.bind_cores_to_rank) words.emplace_back("--bind_cores_to_rank");
  if (!request.bind_core_list.empty()) append(words, {"--bind_core_list", request.bind_core_list});
  words.push_back(request.program.name);
  append(words, request.program.arguments);
  return {.arguments = words};
}

// Every rank by name, since Intel MPI sets no local rank.
RemoteCommand impi_command(const RemoteRun& run) {
  const int per_host = static_cast<int>(run.pool.front().slots.size());
  Words words = {"mpirun", "-ppn", slots_per_host(run)};
  append(words, given_arguments(run));
  for (const auto& [name, value] : run.exports) append(words, {"-genv", name, value});
  append(words, world_words(run));
  append(words, {"-genv", "I_MPI_PIN", "0", "-hosts", joined(host_names(run.pool))});
  const auto nodes = run.request.bind_cores_to_rank ? numa_cores() : std::vector<std::vector<int>>{};
  for (int rank = 0; rank < rank_count(run.pool); ++rank) {
    const int local_rank = rank % per_host;
    if (rank > 0) words.emplace_back(":");
    append(words, {"-n", "1", "-env", "RANK", std::to_string(rank), "-env", "LOCAL_RANK", std::to_string(local_rank)});
    if (run.request.bind_cores_to_rank) {
      const CoreBinding binding = bind_cores(
          {.core_list = run.request.bind_core_list, .numa_nodes = nodes, .ranks = per_host, .local_rank = local_rank});
      append(words, {"-env", "OMP_NUM_THREADS", std::to_string(binding.cores.size())});
      append(words, binding.command);
    }
    append(words, rank_words(run));
  }
  return {.arguments = words};
}

// srun splits --export at commas, and takes quotes for part of a value: such a value goes by srun's own environment,
// which ALL hands on.
bool fits_export(const std::string& value) {
  return value.find(',') == std::string::npos && double_quoted(value) == value;
}

std::string export_word(const Exports& exports, Environment& others) {
  std::string word = "--export=ALL";
  for (const auto& [name, value] : exports) {
    if (fits_export(value)) {
      word += "," + name + "=" + value;
    } else {
      others[name] = value;
    }
  }
  return word;
}

bool filters_hosts(const LaunchRequest& request) { return !request.include.empty() || !request.exclude.empty(); }

// On hosts of Slurm's: ranks find each other by the step's variables, and devices are those that the job was given.
RemoteCommand slurm_command_for_job(const RemoteRun& run) {
  const LaunchRequest& request = run.request;
  RemoteCommand command{
      .arguments = {"srun", "-n", std::to_string(rank_count(run.hosts)), "--nodes", std::to_string(run.hosts.size())}};
  Words& words = command.arguments;
  if (slots_are_equal(run.hosts)) append(words, {"--ntasks-per-node", std::to_string(run.hosts.front().slots.size())});
  if (filters_hosts(request)) append(words, {"--nodelist", joined(host_names(run.hosts))});
  append(words, given_arguments(run));
  for (const auto& [name, value] : run.exports) command.environment[name] = value;
  if (!request.master_addr.empty()) command.environment["MASTER_ADDR"] = request.master_addr;
  if (request.master_port > 0) command.environment["MASTER_PORT"] = std::to_string(request.master_port);
  words.emplace_back("--export=ALL");
  if (run.rank_starter.empty()) {
    append(words, rank_words(run));
    return command;
  }
  append(words, run.rank_starter);
  words.push_back(request.program.name);
  append(words, request.program.arguments);
  return command;
}

RemoteCommand slurm_command(const RemoteRun& run) {
  if (run.hosts_are_slurms) return slurm_command_for_job(run);
  const LaunchRequest& request = run.request;
  RemoteCommand command{.arguments = {"srun", "-n", std::to_string(rank_count(run.hosts))}};
  Words& words = command.arguments;
  append(words, given_arguments(run));
  if (filters_hosts(request)) {
    append(words, {"--nodelist", joined(host_names(run.hosts)), "--nodes", std::to_string(run.hosts.size())});
  } else if (request.num_nodes > 0) {
    append(words, {"--nodes", std::to_string(request.num_nodes)});
  }
  if (request.num_gpus > 0) append(words, {"--gpus-per-node", std::to_string(request.num_gpus)});
  words.push_back(export_word(exports_with_address(run), command.environment));
  append(words, rank_words(run));
  return command;
}

RemoteCommand mvapich_command(const RemoteRun& run) {
  Words words = {"mpirun",     "-np",       std::to_string(rank_count(run.pool)), "-ppn", slots_per_host(run),
                 "--hostfile", run.hostfile};
  append(words, given_arguments(run));
  append(words, export_words(run.exports, "-env"));
  append(words, rank_words(run));
  return {.arguments = words};
}

Exports openmpi_exports() { return {{"UCX_TLS", "tcp"}}; }

Exports mvapich_exports() {
  return {{"MV2_SMP_USE_CMA", "0"},  // not allowed in most containers
          {"MV2_DEBUG_SHOW_BACKTRACE", "1"},
          {"MV2_SUPPORT_DL", "1"},       // deep learning frameworks load libraries late
          {"MV2_ENABLE_AFFINITY", "0"},  // it allows one thread a rank
          {"MV2_INTER_ALLGATHER_TUNING", "5"},
          {"MV2_CUDA_USE_NAIVE", "0"}};
}

constexpr RemoteLauncher kPdsh{.program = "pdsh", .quoted = shell_quote, .command = pdsh_command};
constexpr RemoteLauncher kOpenMpi{
    .program = "ompi_info", .filters_hosts = false, .own_exports = openmpi_exports, .command = openmpi_command};
constexpr RemoteLauncher kMpich{
    .program = "mpirun", .filters_hosts = false, .needs_equal_slots = true, .command = mpich_command};
constexpr RemoteLauncher kIntelMpi{
    .program = "mpirun", .filters_hosts = false, .needs_equal_slots = true, .command = impi_command};
constexpr RemoteLauncher kSlurm{
    .program = "sinfo", .quoted = [](const std::string& value) { return value; }, .command = slurm_command};
constexpr RemoteLauncher kMvapich{.program = "mpiname",
                                  .filters_hosts = false,
                                  .needs_equal_slots = true,
                                  .own_exports = mvapich_exports,
                                  .command = mvapich_command};

// Slurm chooses slots itself: whole hosts can be left out, or the same number of slots on each. Within a job it knows
// how many tasks each host has.
void check_slurm_slots(const RemoteRun& run) {
  const std::vector<HostSlots>& hosts = run.hosts;
  if (run.hosts_are_slurms && !filters_hosts(run.request)) return;
  for (const HostSlots& host : hosts) {
    if (host.slots == first_slots(static_cast<int>(host.slots.size()))) continue;
    throw Error(ErrorKind::kUsage,
                {fmt::format("Slurm cannot choose the slots [{}] of {}", fmt::join(host.slots, ", "), host.host),
                 "--include or --exclude", "leave out whole machines, or keep the first slots of each"});
  }
  if (slots_are_equal(hosts)) return;
  throw Error(ErrorKind::kUsage, {"Slurm needs the same number of slots on every machine: " + counts_text(hosts),
                                  "the hostfile, or the filter", "give every machine the same number"});
}

}  // namespace

Registry<RemoteLauncher> remote_launchers() {
  static constexpr Registry<RemoteLauncher>::Entry kEntries[] = {
      {"pdsh", "a launcher on each host, through pdsh and ssh", kPdsh},
      {"openmpi", "mpirun of Open MPI", kOpenMpi},
      {"mpich", "mpirun of MPICH", kMpich},
      {"impi", "mpirun of Intel MPI", kIntelMpi},
      {"slurm", "srun, within or outside of an allocation", kSlurm},
      {"mvapich", "mpirun of MVAPICH", kMvapich},
  };
  return {"launcher", kEntries};
}

void check_remote_options(const std::string& launcher, const LaunchRequest& request) {
  const auto& entry = remote_launchers().find(launcher, "--launcher");
  if (entry.make.filters_hosts) return;
  if (!request.include.empty() || !request.exclude.empty()) {
    throw Error(ErrorKind::kUsage, {fmt::format("the launcher {} cannot include or exclude machines", entry.name),
                                    "--include or --exclude", "leave them out of the hostfile instead"});
  }
  if (request.num_nodes != -1 || request.num_gpus != -1) {
    throw Error(ErrorKind::kUsage, {fmt::format("the launcher {} cannot limit nodes or slots", entry.name),
                                    "--num_nodes or --num_gpus", "edit the hostfile instead"});
  }
}

void check_remote_slots(const std::string& launcher, const RemoteRun& run) {
  const auto& entry = remote_launchers().find(launcher, "--launcher");
  if (entry.make.command == slurm_command) check_slurm_slots(run);
  if (!entry.make.needs_equal_slots || slots_are_equal(run.pool)) return;
  throw Error(ErrorKind::kUsage, {fmt::format("the launcher {} needs the same number of slots on every machine: {}",
                                              entry.name, counts_text(run.pool)),
                                  "the hostfile", "give every machine the same number, or use --launcher pdsh"});
}

void require_launcher_installed(const std::string& launcher) {
  const auto& entry = remote_launchers().find(launcher, "--launcher");
  if (program_exists(entry.make.program)) return;
  throw Error(
      ErrorKind::kUsage,
      {fmt::format("--launcher {} needs the program {}, which is not installed", entry.name, entry.make.program),
       "this machine",
       fmt::format("install it, or use another launcher: {}", fmt::join(remote_launchers().names(), ", "))});
}

std::vector<std::string> slurm_task_words(const RankProgram& program) {
  Words words = {std::filesystem::canonical("/proc/self/exe").string(), "launch", "--slurm-task"};
  append(words, form_options(program));
  return words;
}

std::string double_quoted(const std::string& value) {
  constexpr std::string_view kPlain = "_@%+=:,./-";
  const bool plain = std::all_of(value.begin(), value.end(), [&](unsigned char c) {
    return std::isalnum(c) != 0 || kPlain.find(static_cast<char>(c)) != std::string_view::npos;
  });
  return plain ? value : '"' + value + '"';
}

}  // namespace tessera::launch
