// Files of numbers that other programs show: of deepspeed.monitor.
#include <pybind11/pybind11.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>
#include <memory>
#include <string>

#include "bindings.h"
#include "tessera/monitor/scalar_log.h"

namespace tessera::python {

namespace py = pybind11;

void bind_monitor(py::module_& module) {
  using monitor::ScalarLog;
  py::class_<ScalarLog>(module, "ScalarLog")
      .def_static(
          "csv",
          [](const std::filesystem::path& folder) { return monitor::make_csv_log(folder, monitor::kEverythingStays); },
          py::arg("folder"), "A file for each name")
      .def_static(
          "tensorboard",
          [](const std::filesystem::path& folder) {
            return monitor::make_tensorboard_log(folder, monitor::kEverythingStays);
          },
          py::arg("folder"), "TensorBoard's event files")
      .def("add", &ScalarLog::add, py::arg("name"), py::arg("value"), py::arg("at"))
      .def_property_readonly("place", &ScalarLog::place);
}

}  // namespace tessera::python
