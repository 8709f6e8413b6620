// HeadExchange: what ranks that share sequences exchange around attention (nn/head_exchange.h).
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"
#include "tessera/comm/group.h"
#include "tessera/nn/context_axis.h"
#include "tessera/nn/head_exchange.h"

namespace tessera::python {

namespace py = pybind11;
using nn::ContextAxis;
using nn::HeadExchange;

void bind_context_axis(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<HeadExchange>(module, "HeadExchange")
      .def("to_heads", &HeadExchange::to_heads, py::arg("x"), no_gil,
           "(batch, own tokens, heads, size) -> (batch, length, own heads, size)")
      .def("to_tokens", &HeadExchange::to_tokens, py::arg("x"), no_gil, "The inverse");
  py::class_<ContextAxis>(module, "ContextAxis")
      .def(py::init([](const std::shared_ptr<comm::Group>& group) {
             return ContextAxis(group, nn::ContextAttention::kUlysses);
           }),
           py::arg("group"))
      .def_property_readonly("rank", &ContextAxis::rank)
      .def_property_readonly("size", &ContextAxis::size)
      .def(
          "exchanges",
          [](const ContextAxis& self, const std::vector<int64_t>& lengths, int64_t heads, int64_t key_heads) {
            std::vector<layout::Range> tokens;
            int64_t begin = 0;
            for (const int64_t length : lengths) {
              tokens.push_back({begin, begin + length});
              begin += length;
            }
            const nn::HeadExchanges both =
                nn::exchanges_of(self.group() ? self.group() : comm::Group::alone(), tokens, heads, key_heads);
            return std::pair(both.queries, both.keys);
          },
          py::arg("lengths"), py::arg("heads"), py::arg("key_heads"),
          "Of each rank's number of tokens: how queries are exchanged, and how keys and values are");
}

}  // namespace tessera::python
