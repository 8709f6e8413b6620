#include "param_groups.h"

namespace tessera::python {

namespace py = pybind11;

optim::ParamGroup param_group_of(const py::dict& group, optim::ParamGroup defaults) {
  optim::ParamGroup result = defaults;
  const auto read = [&group](const char* key, double& into) {
    if (group.contains(key) && !group[key].is_none()) into = py::float_(py::object(group[key])).cast<double>();
  };
  read("lr", result.lr);
  read("eps", result.eps);
  read("weight_decay", result.weight_decay);
  read("momentum", result.momentum);
  if (group.contains("use_muon")) result.orthogonalized = group["use_muon"].cast<bool>();
  if (group.contains("betas")) {
    const py::sequence betas = group["betas"];
    result.beta1 = py::float_(py::object(betas[0])).cast<double>();
    result.beta2 = py::float_(py::object(betas[1])).cast<double>();
  }
  return result;
}

}  // namespace tessera::python
