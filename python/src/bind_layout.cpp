// MeshShape: which rank is where, for programs that lay out their ranks themselves; and which consecutive items a part
// has.
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "tessera/layout/consecutive_parts.h"
#include "tessera/layout/mesh_shape.h"

namespace tessera::python {

namespace py = pybind11;
using layout::MeshShape;

void bind_layout(py::module_& module) {
  py::class_<MeshShape>(module, "MeshShape")
      .def(py::init([](const std::vector<std::pair<std::string, int>>& sizes) {
             std::vector<layout::Axis> axes;
             for (const auto& [name, size] : sizes) axes.push_back({name, size});
             return MeshShape(std::move(axes));
           }),
           py::arg("axes"), "(name, size) of each axis, outermost first")
      .def_property_readonly("ranks", &MeshShape::ranks)
      .def("size", &MeshShape::size, py::arg("axis"))
      .def("coordinate", &MeshShape::coordinate, py::arg("rank"), py::arg("axis"))
      .def("members", &MeshShape::members, py::arg("rank"), py::arg("axes"));
  module.def("uniform_bounds", &layout::uniform_bounds, py::arg("items"), py::arg("parts"));
  module.def("balanced_bounds", &layout::balanced_bounds, py::arg("weights"), py::arg("parts"));
}

}  // namespace tessera::python
