// World: the ranks that train together, over the store of torch.distributed's group.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>

#include "bindings.h"
#include "tessera/base/log.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/connection.h"

namespace tessera::python {

namespace py = pybind11;
using comm::Communicator;

namespace {

std::shared_ptr<Communicator> connect(int rank, int size, int local_rank, const std::string& master_addr,
                                      const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                      double timeout) {
  const comm::World world{.rank = rank, .local_rank = local_rank, .size = size, .master_addr = master_addr};
  const auto wait = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1e3));
  return comm::connect(world, store, name, {.timeout = wait});
}

}  // namespace

void bind_world(py::module_& module) {
  py::class_<Communicator, std::shared_ptr<Communicator>>(module, "World")
      .def_static("alone", &Communicator::alone)
      .def_static("connect", &connect, py::arg("rank"), py::arg("size"), py::arg("local_rank"), py::arg("master_addr"),
                  py::arg("store"), py::arg("name"), py::arg("timeout") = 0.0,
                  "Collective. timeout: seconds of each wait; 0: TESSERA_TIMEOUT, or 600",
                  py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("size", &Communicator::size)
      .def("barrier", &Communicator::barrier, py::arg("label"), py::call_guard<py::gil_scoped_release>());
  module.def("set_log_rank", &set_log_rank, py::arg("rank"), py::arg("world_size"));
  module.def("log_info", [](const std::string& text) { write_info(text); });
  module.def("log_warning", [](const std::string& text) { write_warning(text); });
}

}  // namespace tessera::python
