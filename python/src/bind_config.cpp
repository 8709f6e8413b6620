// Config: a ds_config, read and checked by the same code as at the other doors, but unknown keys are warnings.
#include <pybind11/stl.h>

#include <cmath>
#include <memory>

#include "bindings.h"
#include "json.h"
#include "tessera/base/suggest.h"
#include "tessera/config/batch_sizes.h"
#include "tessera/config/ds_config.h"
#include "tessera/config/hjson.h"
#include "tessera/config/key_table.h"
#include "tessera/optim/loss_scaler.h"

namespace tessera::python {

namespace py = pybind11;
using config::DsConfig;

namespace {

std::shared_ptr<DsConfig> read(const py::dict& values, const std::string& place, int64_t data_parallel_size) {
  const config::DsConfigInput input{
      .data_parallel_size = data_parallel_size, .door = config::Door::kPython, .unknown_keys_are_errors = false};
  return std::make_shared<DsConfig>(config::parse_ds_config(json_of(values), place, input));
}

py::dict all_values(const DsConfig& config) {
  py::dict values;
  for (const config::ResolvedKey& key : config.keys) values[py::str(key.path)] = object_of(key.value);
  return values;
}

using Size = std::optional<int64_t>;

py::tuple resolve_batch_sizes(Size global, Size micro, Size accumulation, int64_t ranks, const std::string& place) {
  const config::BatchSizes sizes = config::resolve_batch_sizes(
      {.global = global, .micro = micro, .accumulation = accumulation, .data_parallel_size = ranks}, place);
  return py::make_tuple(sizes.global, sizes.micro, sizes.accumulation);
}

const char* name_of(config::Type type) {
  using enum config::Type;
  switch (type) {
    case kBool:
      return "bool";
    case kInt:
    case kIntOrNever:
      return "int";
    case kNumber:
      return "number";
    case kNumberOrList:
      return "number or list";
    case kNumberList:
    case kIntList:
      return "numbers";
    case kPair:
      return "pair";
    case kText:
      return "text";
    case kTextList:
      return "texts";
    case kChoice:
      return "choice";
    case kIntOrChoice:
      return "int or choice";
    case kObject:
      return "block";
    case kOpenObject:
    case kAny:
      return "any";
  }
  return "";
}

const char* torch_name_of(config::Dtype dtype) {
  switch (dtype) {
    case config::Dtype::kBf16:
      return "bfloat16";
    case config::Dtype::kFp16:
      return "float16";
    case config::Dtype::kFp32:
      break;
  }
  return "float32";
}

// Ranges under pydantic's names.
py::dict bounds_of(const config::Kind& kind) {
  py::dict bounds;
  if (std::isfinite(kind.low)) bounds[kind.above_low ? "gt" : "ge"] = kind.low;
  if (std::isfinite(kind.high)) bounds[kind.below_high ? "lt" : "le"] = kind.high;
  return bounds;
}

py::list key_rows() {
  py::list rows;
  for (const config::Key& key : config::ds_config_keys()) {
    py::dict row;
    row["path"] = std::string(key.path);
    row["type"] = name_of(key.kind.type);
    row["bounds"] = bounds_of(key.kind);
    row["choices"] = config::split_choices(key.kind.choices);
    row["default"] = object_of(config::default_of(key));
    row["required"] = key.default_value == "required";
    row["status"] = config::describe(key.status);
    row["instead"] = std::string(key.notes.instead);
    row["when"] = config::split_choices(key.notes.when);
    row["meaning"] = std::string(key.meaning);
    rows.append(row);
  }
  return rows;
}

}  // namespace

void bind_config(py::module_& module) {
  py::class_<DsConfig, std::shared_ptr<DsConfig>>(module, "Config")
      .def(py::init(&read), py::arg("values"), py::arg("place"), py::arg("data_parallel_size"),
           "place: what to call it in messages")
      .def_readonly("warnings", &DsConfig::warnings)
      .def_property_readonly("values", &all_values, "Every key that applies, by its path, after \"auto\" and defaults")
      .def_property_readonly("micro_batch", [](const DsConfig& self) { return self.batch.micro; })
      .def_property_readonly("accumulation", [](const DsConfig& self) { return self.batch.accumulation; })
      .def_property_readonly("global_batch", [](const DsConfig& self) { return self.batch.global; })
      .def_property_readonly("stage", [](const DsConfig& self) { return self.zero.stage; })
      .def_property_readonly("publishes_lazily",
                             [](const DsConfig& self) { return self.own.lazy_publish.value_or(false); })
      .def_property_readonly("compute_dtype", [](const DsConfig& self) { return torch_name_of(self.dtypes.compute); })
      .def_property_readonly("grad_dtype", [](const DsConfig& self) { return torch_name_of(self.dtypes.grad); })
      .def_property_readonly("scales_dynamically",
                             [](const DsConfig& self) { return optim::LossScaler(self.loss_scaling).dynamic(); })
      .def_property_readonly("initial_loss_scale", [](const DsConfig& self) { return self.loss_scaling.initial; })
      .def_property_readonly("casts_inputs", [](const DsConfig& self) { return self.dtypes.cast_inputs; })
      .def_property_readonly("autocast_dtype", [](const DsConfig& self) -> std::optional<std::string> {
        if (!self.dtypes.autocast) return std::nullopt;
        return torch_name_of(*self.dtypes.autocast);
      });
  module.def(
      "parse_hjson",
      [](const std::string& text, const std::string& name) { return object_of(config::parse_hjson(text, name).value); },
      py::arg("text"), py::arg("name"), "name: what to call the text in messages");
  module.def("resolve_batch_sizes", &resolve_batch_sizes, py::arg("train_batch_size"),
             py::arg("train_micro_batch_size_per_gpu"), py::arg("gradient_accumulation_steps"),
             py::arg("data_parallel_size"), py::arg("place") = "the batch sizes",
             "All three, in this order; what is None is computed, and ConfigError tells what cannot be");
  module.def("config_keys", &key_rows, "The table of all keys, in its order");
  module.def(
      "nearest_name",
      [](const std::string& name, const std::vector<std::string>& known) { return nearest_name(name, known); },
      py::arg("name"), py::arg("known"));
}

}  // namespace tessera::python
