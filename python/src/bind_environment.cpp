// What this machine has that a run would use: of `ds_report`.
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "tessera/engine/environment_facts.h"

namespace tessera::python {

namespace py = pybind11;

namespace {

using Row = std::tuple<std::string, std::string, std::string, std::optional<uint64_t>, std::optional<std::string>>;

std::vector<Row> rows_of(const std::vector<Fact>& facts) {
  std::vector<Row> rows;
  for (const Fact& fact : facts) rows.emplace_back(fact.topic, fact.name, fact.value, fact.number, fact.warning);
  return rows;
}

}  // namespace

void bind_environment(py::module_& module) {
  module.def(
      "environment_facts", [] { return rows_of(engine::environment_facts()); },
      "(topic, name, value, the quantity that it shows or None, what will go wrong or None) each",
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace tessera::python
