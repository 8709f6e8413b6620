// Mesh: the ranks on named axes, as comm/mesh.h has them.
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "tessera/comm/mesh.h"

namespace tessera::python {

namespace py = pybind11;
using comm::Mesh;

void bind_mesh(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Mesh, std::shared_ptr<Mesh>>(module, "Mesh")
      .def_static("data_parallel", &Mesh::data_parallel, py::arg("world"), no_gil)
      .def_static(
          "of_world",
          [](std::shared_ptr<comm::Group> world, const std::vector<std::pair<std::string, int>>& sizes,
             const std::string& where) {
            std::vector<layout::Axis> axes;
            for (const auto& [name, size] : sizes) axes.push_back({name, size});
            const int ranks = world->size();
            return std::make_shared<Mesh>(std::move(world), layout::MeshShape::of_world(ranks, std::move(axes), where));
          },
          py::arg("world"), py::arg("axes"), py::arg("where"), "axes: (name, size), outermost first; 0: what is left")
      .def_static("of_coordinates", &Mesh::of_coordinates, py::arg("world"), py::arg("axes"), py::arg("own"),
                  "Collective. own: this rank's coordinate on each axis", no_gil)
      .def_property_readonly("world", &Mesh::world)
      .def_property_readonly("data", &Mesh::data_group)
      .def_property_readonly("batch", &Mesh::batch_group)
      .def_property_readonly("axes",
                             [](const Mesh& self) {
                               std::vector<std::pair<std::string, int>> axes;
                               for (const layout::Axis& axis : self.shape().axes()) {
                                 axes.emplace_back(axis.name, axis.size);
                               }
                               return axes;
                             })
      .def(
          "size", [](const Mesh& self, const std::string& axis) { return self.shape().size(axis); }, py::arg("axis"))
      .def("coordinate", &Mesh::coordinate, py::arg("axis"))
      .def("group", &Mesh::group, py::arg("axes"))
      .def_property_readonly("parts", [](const Mesh& self) { return self.shape().parts(); })
      .def_property_readonly("holds_parts", [](const Mesh& self) { return self.shape().holds_parts(); });
}

}  // namespace tessera::python
