// PartitionedParam: see zero/partitioned_param.h.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "tessera/zero/partitioned_param.h"

namespace tessera::python {

namespace py = pybind11;
using zero::PartitionedParam;

void bind_zero(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<PartitionedParam, std::shared_ptr<PartitionedParam>>(module, "PartitionedParam")
      .def(py::init<const at::Tensor&, at::ScalarType, std::shared_ptr<comm::Group>>(), py::arg("parameter"),
           py::arg("dtype"), py::arg("world"), no_gil)
      .def_property_readonly("shape", &PartitionedParam::shape)
      .def_property_readonly("numel", &PartitionedParam::numel)
      .def_property_readonly("piece", &PartitionedParam::piece)
      .def("gather", &PartitionedParam::gather, py::arg("parameter"), no_gil)
      .def("scatter", &PartitionedParam::scatter, py::arg("parameter"), py::arg("written_by"), no_gil)
      .def("whole", &PartitionedParam::whole, no_gil);
}

}  // namespace tessera::python
