// tessera._launch: ranks of this machine as processes that live and die together. A module of its own without LibTorch,
// so that a launcher need not load it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/run_secret.h"
#include "tessera/launch/planned_ranks.h"

namespace py = pybind11;

namespace tessera::python {
namespace {

// rank, command, environment over ours, log file ("": our own output)
using Rank = std::tuple<int, std::vector<std::string>, std::map<std::string, std::string>, std::string>;

int run_ranks(const std::vector<Rank>& ranks, double grace) {
  const std::chrono::milliseconds time(static_cast<int64_t>(grace * 1e3));
  std::vector<launch::RankPlan> plans;
  for (const auto& [rank, command, environment, log_file] : ranks) {
    launch::RankPlan& plan = plans.emplace_back();
    plan.rank = rank;
    plan.command = command;
    plan.environment = environment;
    plan.inherits_input = plans.size() == 1;
    plan.inherits_output = log_file.empty();
    plan.log_file = log_file;
  }
  return launch::run_planned(plans, {.grace = time, .ending_time = time, .signal_fails = true}).code;
}

void raise(const Error& error) {
  const auto& [what, where, fix] = error.report();
  const py::object refused = py::module_::import("tessera.launch_error").attr("refused")(what, where, fix);
  PyErr_SetObject(py::type::of(refused).ptr(), refused.ptr());
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
  module.def("has_run_secret", [] { return !tessera::run_secret().empty(); });
  module.def("make_run_secret", &tessera::make_run_secret);
  module.def(
      "run_ranks", &run_ranks, py::arg("ranks"), py::arg("grace"), py::call_guard<py::gil_scoped_release>(),
      "Starts (rank, command, environment over ours, log file or \"\") each, and returns the exit code of all: 0, "
      "that of the first rank which failed, or 128 and the number of a signal. The first that fails ends the "
      "others; SIGINT, SIGTERM and SIGHUP are handed on. grace: seconds until SIGKILL. From the main thread");
}
