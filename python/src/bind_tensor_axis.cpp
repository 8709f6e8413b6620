// TensorAxis: the ranks over which each matrix of a model is cut (nn/tensor_axis.h), and what a layer needs of them.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "bindings.h"
#include "tessera/nn/tensor_axis.h"
#include "tessera/nn/vocabulary.h"

namespace tessera::python {

namespace py = pybind11;
using nn::Cut;
using nn::TensorAxis;

void bind_tensor_axis(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<layout::Shard>(module, "Shard", "Where ranks of an axis hold parts of a parameter")
      .def_readonly("axis", &layout::Shard::axis)
      .def_readonly("dim", &layout::Shard::dim);
  py::class_<Cut>(module, "Cut")
      .def_property_readonly("own", [](const Cut& self) { return std::pair(self.own().begin, self.own().end); })
      .def_property_readonly("whole", &Cut::whole)
      .def("times", &Cut::times, py::arg("each"))
      .def("shard", &Cut::shard, py::arg("dim"), py::arg("axis"));
  py::class_<TensorAxis>(module, "TensorAxis")
      .def(py::init([](const std::shared_ptr<comm::Group>& group, const std::string& key) {
             return TensorAxis(group).asked_by(key);
           }),
           py::arg("group"), py::arg("key"), "key: of the configuration, for errors")
      .def_property_readonly("rank", &TensorAxis::rank)
      .def_property_readonly("size", &TensorAxis::size)
      .def("called", &TensorAxis::called, py::arg("name"))
      .def("cut", &TensorAxis::cut, py::arg("items"), py::arg("what"))
      .def(
          "cut_heads",
          [](const TensorAxis& self, int64_t heads, int64_t key_heads) {
            const TensorAxis::Heads cuts = self.cut_heads(heads, key_heads);
            return std::pair(cuts.query, cuts.key);
          },
          py::arg("heads"), py::arg("key_heads"))
      .def("sharers", &TensorAxis::sharers, py::arg("cut"))
      .def("into_parts", &TensorAxis::into_parts, py::arg("x"), no_gil)
      .def("out_of_parts", &TensorAxis::out_of_parts, py::arg("x"), no_gil)
      .def("shared_parameter", &TensorAxis::shared_parameter, py::arg("parameter"), no_gil)
      .def("gathered", &TensorAxis::gathered, py::arg("own"), py::arg("cut"), no_gil)
      .def("joined", &TensorAxis::joined, py::arg("own"), py::arg("cut"), no_gil);
  module.def(
      "embedded_of_cut",
      [](const at::Tensor& ids, const at::Tensor& weight, int64_t padding_index, const TensorAxis& axis,
         const Cut& words) {
        return axis.out_of_parts(nn::embedded(ids, weight, padding_index, {.axis = axis, .words = words}));
      },
      py::arg("ids"), py::arg("weight"), py::arg("padding_index"), py::arg("axis"), py::arg("words"), no_gil);
}

}  // namespace tessera::python
