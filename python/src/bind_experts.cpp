// Layers with experts: who has them, which tokens go where (nn/capacity_gate.h), and how they get there
// (nn/expert_dispatch.h).
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "tessera/nn/capacity_gate.h"
#include "tessera/nn/expert_axis.h"
#include "tessera/nn/expert_dispatch.h"

namespace tessera::python {

namespace py = pybind11;
using nn::ExpertAxis;

void bind_experts(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<ExpertAxis>(module, "ExpertAxis")
      .def(py::init<>(), "Of one rank")
      .def(py::init([](const std::shared_ptr<comm::Group>& group, const std::string& key) {
             return ExpertAxis(group).asked_by(key);
           }),
           py::arg("group"), py::arg("key"), "key: of the configuration, for errors")
      .def_property_readonly("rank", &ExpertAxis::rank)
      .def_property_readonly("size", &ExpertAxis::size)
      .def(
          "own",
          [](const ExpertAxis& self, int64_t experts) {
            const layout::Range own = self.own(experts);
            return std::pair(own.begin, own.end);
          },
          py::arg("experts"));
  module.def(
      "route_by_capacity",
      [](const at::Tensor& logits, int64_t per_token, double factor, int64_t least, bool drops, bool in_order,
         bool noise, const std::optional<at::Tensor>& used) {
        const nn::CapacityRouting found = nn::route_by_capacity(logits,
                                                                {.per_token = per_token,
                                                                 .factor = factor,
                                                                 .least = least,
                                                                 .drops = drops,
                                                                 .in_order = in_order,
                                                                 .noise = noise},
                                                                used.value_or(at::Tensor()));
        return std::tuple(found.routing.experts, found.routing.weights, found.balance_loss, found.counts);
      },
      py::arg("logits"), py::kw_only(), py::arg("per_token"), py::arg("factor"), py::arg("least"), py::arg("drops"),
      py::arg("in_order"), py::arg("noise"), py::arg("used"), no_gil,
      "(experts, weights) of each token, (tokens, per_token) both, the balance loss, and how many chose each expert");
  module.def(
      "through_experts",
      [](const at::Tensor& tokens, const at::Tensor& experts, const at::Tensor& weights, int64_t count,
         const ExpertAxis& axis, const py::function& run) {
        const auto called = [&run](int64_t expert, const at::Tensor& rows) {
          const py::gil_scoped_acquire gil;
          return run(expert, rows).cast<at::Tensor>();
        };
        const py::gil_scoped_release released;
        return nn::through_experts(tokens, {.experts = experts, .weights = weights}, count, axis, called);
      },
      py::arg("tokens"), py::arg("experts"), py::arg("weights"), py::arg("count"), py::arg("axis"), py::arg("run"),
      "run(expert, rows), of this rank's experts; an expert of number `count` takes nothing");
  module.def(
      "through_experts_at_once",
      [](const at::Tensor& tokens, const at::Tensor& experts, const at::Tensor& weights, int64_t count,
         const ExpertAxis& axis, const py::function& run) {
        const auto called = [&run](const at::Tensor& rows, const std::vector<int64_t>& of_experts) {
          const py::gil_scoped_acquire gil;
          return run(rows, of_experts).cast<at::Tensor>();
        };
        const py::gil_scoped_release released;
        return nn::through_experts_at_once(tokens, {.experts = experts, .weights = weights}, count, axis, called);
      },
      py::arg("tokens"), py::arg("experts"), py::arg("weights"), py::arg("count"), py::arg("axis"), py::arg("run"),
      "run(rows, of_experts): rows in order of this rank's experts, so many for each");
}

}  // namespace tessera::python
