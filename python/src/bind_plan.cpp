// DeepSpeed's estimates of memory (plan/deepspeed_estimates.h).
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "tessera/plan/deepspeed_estimates.h"

namespace tessera::python {

namespace py = pybind11;
using plan::DeepSpeedInput;
using plan::DeepSpeedRow;

void bind_plan(py::module_& module) {
  py::class_<DeepSpeedInput>(module, "DeepSpeedInput")
      .def(py::init([](double params, double largest_layer_params, int64_t nodes, int64_t gpus_per_node,
                       double buffer_factor) {
             return DeepSpeedInput{params, largest_layer_params, nodes, gpus_per_node, buffer_factor};
           }),
           py::kw_only(), py::arg("params"), py::arg("largest_layer_params"), py::arg("nodes"),
           py::arg("gpus_per_node"), py::arg("buffer_factor"));
  py::class_<DeepSpeedRow>(module, "DeepSpeedRow")
      .def_readonly("offload_param", &DeepSpeedRow::offload_param)
      .def_readonly("offload_optimizer", &DeepSpeedRow::offload_optimizer)
      .def_readonly("zero_init", &DeepSpeedRow::zero_init)
      .def_readonly("cpu_bytes", &DeepSpeedRow::cpu_bytes)
      .def_readonly("gpu_bytes", &DeepSpeedRow::gpu_bytes);
  module.def("deepspeed_rows", &plan::deepspeed_rows, py::arg("stage"), py::arg("input"));
  module.def("deepspeed_table", &plan::deepspeed_table, py::arg("stage"), py::arg("input"), "As DeepSpeed prints it");
}

}  // namespace tessera::python
