// run_local: `tessera launch` for Python programs.
#include <pybind11/stl.h>

#include "bindings.h"
#include "tessera/launch/local_runner.h"

namespace tessera::python {

namespace py = pybind11;

void bind_launch(py::module_& module) {
  module.def(
      "run_local",
      [](int nproc, const std::vector<std::string>& command, const std::string& master_addr, int master_port,
         const std::map<std::string, std::string>& environment) {
        return launch::run_local({.nproc = nproc,
                                  .command = command,
                                  .master_addr = master_addr,
                                  .master_port = master_port,
                                  .extra_environment = environment});
      },
      py::arg("nproc"), py::arg("command"), py::arg("master_addr") = "127.0.0.1", py::arg("master_port") = 0,
      py::arg("environment") = std::map<std::string, std::string>{},
      "Runs a program as ranks on this host until all have ended; returns the exit code",
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace tessera::python
