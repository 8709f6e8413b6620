// tessera._launch: what a launcher decides, and ranks of this machine as processes that live and die together. A module
// of its own without LibTorch, so that a launcher need not load it. Hosts and their slots are lists of (host, [slot,
// …]).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/shell.h"
#include "tessera/launch/cluster_plan.h"
#include "tessera/launch/core_binding.h"
#include "tessera/launch/exported_environment.h"
#include "tessera/launch/host_filter.h"
#include "tessera/launch/hostfile.h"
#include "tessera/launch/node_run.h"
#include "tessera/launch/remote_commands.h"
#include "tessera/launch/remote_run.h"
#include "tessera/launch/slurm_task.h"
#include "tessera/launch/this_host.h"
#include "tessera/launch/world_info.h"

namespace py = pybind11;

namespace tessera::python {
namespace {

using launch::HostSlots;
using launch::LaunchRequest;
using launch::RankProgram;
using Hosts = std::vector<std::pair<std::string, std::vector<int>>>;
using Words = std::vector<std::string>;

std::vector<HostSlots> hosts_from(const Hosts& pairs) {
  std::vector<HostSlots> hosts;
  for (const auto& [host, slots] : pairs) hosts.push_back({host, slots});
  return hosts;
}

Hosts pairs_of(const std::vector<HostSlots>& hosts) {
  Hosts pairs;
  for (const HostSlots& host : hosts) pairs.emplace_back(host.host, host.slots);
  return pairs;
}

// DeepSpeed's launch.py gives ranks this long to end, for whatever reason, and never calls a signal a success.
constexpr std::chrono::milliseconds kGrace{30000};

int run_node(const LaunchRequest& request, const Hosts& hosts, int node_rank, int pid_file) {
  launch::ClusterPlan cluster = launch::cluster_plan(request, hosts_from(hosts));
  cluster.sets_devices = true;
  cluster.output = launch::RankOutput::kInherited;
  return launch::run_node(cluster, {.node_rank = node_rank,
                                    .pid_file = pid_file,
                                    .supervision = {.grace = kGrace, .ending_time = kGrace, .signal_fails = true}})
      .code;
}

const launch::RemoteLauncher& launcher_named(const std::string& name) {
  return launch::remote_launchers().find(name, "--launcher").make;
}

// (command, what ends its ranks elsewhere, variables for the command itself)
std::tuple<Words, Words, launch::Environment> remote_command(const std::string& name, const launch::RemoteRun& run) {
  launch::check_remote_slots(name, run);
  const launch::RemoteCommand command = launcher_named(name).command(run);
  return {command.arguments, command.end, command.environment};
}

void raise(const Error& error) {
  const auto& [what, where, fix] = error.report();
  const py::object refused = py::module_::import("tessera.launch_error").attr("refused")(what, where, fix);
  PyErr_SetObject(py::type::of(refused).ptr(), refused.ptr());
}

void bind_hosts(py::module_& module) {
  module.def("parse_hostfile",
             [](const Words& lines, const std::string& name) { return pairs_of(launch::parse_hostfile(lines, name)); });
  module.def("parse_filter_node",
             [](const std::string& text) { return pairs_of({launch::parse_filter_node(text)})[0]; });
  module.def("parse_filter", [](const std::string& text) { return pairs_of(launch::parse_filter(text)); });
  module.def("filter_hosts", [](const Hosts& hosts, const std::string& include, const std::string& exclude) {
    return pairs_of(launch::filter_hosts(hosts_from(hosts), {include, exclude}));
  });
  module.def("first_hosts", [](const Hosts& hosts, int num_nodes, int num_gpus) {
    return pairs_of(launch::first_hosts(hosts_from(hosts), num_nodes, num_gpus));
  });
  module.def("check_host_options", &launch::check_host_options);
  module.def("check_without_hostfile", &launch::check_without_hostfile);
  module.def("choose_hosts", [](const LaunchRequest& request, const Hosts& pool) {
    return pairs_of(launch::choose_hosts(request, hosts_from(pool)));
  });
  module.def("check_own_node_rank", [](const LaunchRequest& request, const Hosts& hosts) {
    launch::check_own_node_rank(request, hosts_from(hosts));
  });
  module.def("encode_world_info", [](const Hosts& hosts) { return launch::encode_world_info(hosts_from(hosts)); });
  module.def("decode_world_info", [](const std::string& text) { return pairs_of(launch::decode_world_info(text)); });
  module.def("is_this_host", &launch::is_this_host);
  module.def(
      "slurm_rank_variables",
      [] {
        const auto step = slurm_step_of_environment();
        return step ? launch::variables_of_task(*step) : launch::Environment();
      },
      "The variables of a rank that torch.distributed and DeepSpeed's programs read, by Slurm's of this task of a "
      "step; "
      "none where it is no task");
}

void bind_requests(py::module_& module) {
  py::class_<RankProgram>(module, "RankProgram")
      .def(py::init([](const std::string& name, const Words& arguments, const std::string& python, const Words& form) {
             Words words = {name};
             words.insert(words.end(), arguments.begin(), arguments.end());
             const auto given = [&](const char* option) {
               return std::find(form.begin(), form.end(), option) != form.end();
             };
             return launch::program_of(words, {.module = given("module"),
                                               .no_python = given("no_python"),
                                               .no_local_rank = given("no_local_rank"),
                                               .python = python});
           }),
           py::arg("name"), py::arg("arguments"), py::arg("python"), py::arg("form"),
           "form: those of module, no_python and no_local_rank that are set");
  module.def("require_program", &launch::require_program);
  py::class_<LaunchRequest>(module, "LaunchRequest")
      .def(py::init<>())
      .def_readwrite("program", &LaunchRequest::program)
      .def_readwrite("hostfile", &LaunchRequest::hostfile)
      .def_readwrite("include", &LaunchRequest::include)
      .def_readwrite("exclude", &LaunchRequest::exclude)
      .def_readwrite("num_nodes", &LaunchRequest::num_nodes)
      .def_readwrite("num_gpus", &LaunchRequest::num_gpus)
      .def_readwrite("master_addr", &LaunchRequest::master_addr)
      .def_readwrite("master_port", &LaunchRequest::master_port)
      .def_readwrite("launcher_args", &LaunchRequest::launcher_args)
      .def_readwrite("no_ssh", &LaunchRequest::no_ssh)
      .def_readwrite("node_rank", &LaunchRequest::node_rank)
      .def_readwrite("ssh_port", &LaunchRequest::ssh_port)
      .def_readwrite("venv_script", &LaunchRequest::venv_script)
      .def_readwrite("bind_cores_to_rank", &LaunchRequest::bind_cores_to_rank)
      .def_readwrite("bind_core_list", &LaunchRequest::bind_core_list)
      .def_readwrite("enable_each_rank_log", &LaunchRequest::enable_each_rank_log)
      .def_readwrite("save_pid", &LaunchRequest::save_pid);
  module.def(
      "run_node", &run_node, py::arg("request"), py::arg("hosts"), py::arg("node_rank"), py::arg("pid_file"),
      py::call_guard<py::gil_scoped_release>(),
      "Starts the ranks of one of the hosts here, and returns the exit code of all: 0, that of the first rank which "
      "failed, or 128 and the number of a signal. The first that fails ends the others; SIGINT, SIGTERM and SIGHUP "
      "are handed on. pid_file: the number in its name, 0: none. From the main thread");
}

void bind_cores(py::module_& module) {
  module.def("parse_core_range", &launch::parse_core_range);
  module.def("parse_core_list", &launch::parse_core_list);
  module.def("check_core_options", &launch::check_core_options);
  module.def("require_core_binding", &launch::require_core_binding);
  module.def("numa_cores", &launch::numa_cores);
  module.def("bind_cores", [](const std::string& core_list, int ranks, int local_rank) {
    const launch::CoreBinding binding = launch::bind_cores(
        {.core_list = core_list, .numa_nodes = launch::numa_cores(), .ranks = ranks, .local_rank = local_rank});
    return std::make_pair(binding.cores, binding.command);
  });
}

void bind_remote(py::module_& module) {
  py::class_<launch::RemoteRun>(module, "RemoteRun")
      .def(py::init([](const LaunchRequest& request, const Hosts& pool, const Hosts& hosts) {
             return launch::RemoteRun{.request = request, .pool = hosts_from(pool), .hosts = hosts_from(hosts)};
           }),
           py::arg("request"), py::arg("pool"), py::arg("hosts"))
      .def_readwrite("world_info", &launch::RemoteRun::world_info)
      .def_readwrite("exports", &launch::RemoteRun::exports)
      .def_readwrite("folder", &launch::RemoteRun::folder)
      .def_readwrite("hostfile", &launch::RemoteRun::hostfile)
      .def_readwrite("node_launcher", &launch::RemoteRun::node_launcher)
      .def_readwrite("rank_starter", &launch::RemoteRun::rank_starter)
      .def_readwrite("launcher_pid", &launch::RemoteRun::launcher_pid)
      .def_readwrite("pdsh_ssh_arguments", &launch::RemoteRun::pdsh_ssh_arguments);
  module.def("remote_command", &remote_command, py::arg("launcher"), py::arg("run"));
  module.def("check_remote_options", &launch::check_remote_options);
  module.def("check_remote_slots", &launch::check_remote_slots);
  module.def("require_launcher_installed", &launch::require_launcher_installed);
  module.def("launcher_program", [](const std::string& name) { return std::string(launcher_named(name).program); });
  module.def("own_exports", [](const std::string& name) { return launcher_named(name).own_exports(); });
  module.def("quoted_by",
             [](const std::string& name, const std::string& value) { return launcher_named(name).quoted(value); });
  module.def("double_quoted", &launch::double_quoted);
  module.def("shell_quote", &shell_quote);
  module.def(
      "run_remote",
      [](const std::string& name, const Words& arguments, const Words& end, const launch::Environment& environment) {
        return launch::run_remote(name, {.arguments = arguments, .environment = environment, .end = end}).code;
      },
      py::arg("name"), py::arg("arguments"), py::arg("end"), py::arg("environment"),
      py::call_guard<py::gil_scoped_release>());
  module.def("parse_environment_file", &launch::parse_environment_file);
  module.def("read_environment_file", &launch::read_environment_file);
  module.def("exported_prefixes", &launch::exported_prefixes);
  module.def("exported_variables", &launch::exported_variables);
  module.def("require_no_open_secret", &launch::require_no_open_secret);
  module.def("python_path_with", &launch::python_path_with);
}

}  // namespace
}  // namespace tessera::python

PYBIND11_MODULE(_launch, module) {
  using namespace tessera::python;
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const tessera::Error& error) {
      raise(error);
    }
  });
  bind_hosts(module);
  bind_requests(module);
  bind_cores(module);
  bind_remote(module);
}
