// Training state that a program has moved from a device to the host: offload_states() and reload_states().
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"
#include "tessera/engine/engine_base.h"
#include "tessera/zero/moved_states.h"

namespace tessera::python {

namespace py = pybind11;

void bind_moved_states(py::module_& module) {
  using zero::MovedStates;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<MovedStates>(module, "MovedStates")
      .def(py::init([](Engine& engine, bool optimizer, bool master, bool parameters, bool gradients,
                       std::vector<at::Tensor> of_client, bool pinned) {
             return std::make_unique<MovedStates>(engine.sharded_model(),
                                                  zero::StatesToMove{.optimizer = optimizer,
                                                                     .master = master,
                                                                     .parameters = parameters,
                                                                     .gradients = gradients,
                                                                     .of_client = std::move(of_client),
                                                                     .pinned = pinned});
           }),
           py::arg("engine"), py::kw_only(), py::arg("optimizer"), py::arg("master"), py::arg("parameters"),
           py::arg("gradients"), py::arg("of_client"), py::arg("pinned"), py::keep_alive<1, 2>(), no_gil)
      .def("bring_back", &MovedStates::bring_back, no_gil);
}

}  // namespace tessera::python
