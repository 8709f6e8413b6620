// Tessera's checkpoint files, without an engine: to read one tensor by tensor, to write one of tensors from elsewhere,
// and to make a folder that appears whole or not at all. For what converts from and to other formats.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <torch/csrc/utils/pybind.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "json.h"
#include "tessera/checkpoint/publish.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/weight_files.h"
#include "tessera/checkpoint/writer.h"
#include "tessera/storage/atomic_dir.h"

namespace tessera::python {

namespace fs = std::filesystem;
namespace py = pybind11;
using checkpoint::CheckpointReader;

namespace {

// (name, shape, {kind: dtype}, steps)
using Announced = std::tuple<std::string, std::vector<int64_t>, py::dict, int64_t>;
using Read = std::function<at::Tensor(const std::string&, const std::string&)>;

// tensors: one dict for all who ask.
struct Reader {
  explicit Reader(const fs::path& path)
      : opened(path), tensors(object_of(config::Json(checkpoint::to_json(opened.manifest().tensors)))) {}

  CheckpointReader opened;
  py::object tensors;
};

fs::path write(const fs::path& folder, const std::string& tag, const std::vector<Announced>& tensors, const Read& read,
               const std::map<std::string, std::string>& aliases, const py::object& engine_state,
               const py::object& client_state, const checkpoint::TensorMap& shared, bool trainable_only) {
  checkpoint::WholeCheckpoint made{.folder = folder, .facts = {.tag = tag}, .tensors = {}, .shared_tensors = shared};
  made.facts.trainable_only = trainable_only;
  made.facts.aliases = aliases;
  made.facts.engine_state = json_of(engine_state);
  made.facts.client_state = json_of(client_state);
  for (const auto& [name, shape, kinds, steps] : tensors) {
    checkpoint::WholeTensor& tensor = made.tensors.emplace_back();
    tensor = {.name = name, .shape = shape, .kinds = {}, .steps = steps};
    for (const auto& [kind, dtype] : kinds) {  // in the dict's order
      tensor.kinds.emplace_back(kind.cast<std::string>(), dtype.cast<at::ScalarType>());
    }
  }
  const py::gil_scoped_release no_gil;
  return checkpoint::write_checkpoint(made, read);
}

void write_weights(const fs::path& folder, const std::vector<std::pair<std::string, at::Tensor>>& weights,
                   const std::map<std::string, std::string>& aliases, bool safetensors, const std::string& max_size) {
  checkpoint::WeightFiles how{.aliases = aliases};
  if (!safetensors) how.format = checkpoint::WeightFormat::kStateDict;
  how.max_shard_bytes = max_size.empty() ? UINT64_MAX : checkpoint::shard_bytes(max_size, "max_shard_size");
  std::vector<storage::PlannedTensor> plan;
  for (const auto& [name, tensor] : weights) plan.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  const std::map<std::string, at::Tensor> by_name(weights.begin(), weights.end());
  checkpoint::write_weight_files(
      folder, plan, [&](const std::string& name) { return by_name.at(name); }, how);
}

// with NewFolder(path) as aside: … what is written in `aside`, fsynced, is `path` afterwards; nothing is after an
// error.
struct NewFolder {
  fs::path path;

  fs::path enter() const {
    checkpoint::require_new(path);
    storage::create_aside(path);
    return storage::aside_of(path);
  }
  void exit(const py::object& error_class, const py::object&, const py::object&) const {
    const bool failed = !error_class.is_none();
    const py::gil_scoped_release no_gil;
    if (failed) {
      storage::abandon(path);
    } else {
      storage::publish(path);
    }
  }
};

}  // namespace

void bind_checkpoint(py::module_& module) {
  py::class_<Reader>(module, "CheckpointReader")
      .def(py::init<const fs::path&>(), py::arg("path"), "A checkpoint's folder, or a folder of checkpoints")
      .def_property_readonly("path", [](const Reader& self) { return self.opened.folder(); })
      .def_property_readonly("tag", [](const Reader& self) { return self.opened.manifest().tag; })
      .def_property_readonly("node_local", [](const Reader& self) { return self.opened.manifest().node_local; })
      .def_property_readonly("aliases", [](const Reader& self) { return self.opened.manifest().aliases; })
      .def_property_readonly("engine_state",
                             [](const Reader& self) { return object_of(self.opened.manifest().engine_state); })
      .def_property_readonly("client_state",
                             [](const Reader& self) { return object_of(self.opened.manifest().client_state); })
      .def_readonly("tensors", &Reader::tensors, "{name: {shape, kinds, steps, numbers, pieces}}, as in manifest.json")
      .def(
          "names_as_written", [](Reader& self, bool trained) { return self.opened.names_as_written(trained); },
          py::arg("trained") = false, py::call_guard<py::gil_scoped_release>())
      .def(
          "tensor",
          [](Reader& self, const std::string& name, const std::string& kind) { return self.opened.tensor(name, kind); },
          py::arg("name"), py::arg("kind"), py::call_guard<py::gil_scoped_release>())
      .def(
          "read",
          [](Reader& self, const std::string& name, const std::string& kind, int64_t first, const at::Tensor& into) {
            const at::NoGradGuard no_grad;
            self.opened.source().read(name, kind, first, into);
          },
          py::arg("name"), py::arg("kind"), py::arg("first"), py::arg("into"), py::call_guard<py::gil_scoped_release>(),
          "into (flat) = as many elements of the flattened tensor, from the first on")
      .def(
          "shared_tensors", [](Reader& self) { return self.opened.source().shared_tensors(); },
          py::call_guard<py::gil_scoped_release>(), "Those beside the client state, by name")
      .def(
          "dtype",
          [](Reader& self, const std::string& name, const std::string& kind) {
            return self.opened.source().dtype(name, kind);
          },
          py::arg("name"), py::arg("kind"));
  module.def("write_checkpoint", &write, py::arg("folder"), py::arg("tag"), py::arg("tensors"), py::arg("read"),
             py::arg("aliases"), py::arg("engine_state"), py::arg("client_state"),
             py::arg("shared") = checkpoint::TensorMap(), py::arg("trainable_only") = false,
             "<folder>/<tag>, and `latest`. tensors: (name, shape, {kind: dtype}, steps) each; read(name, kind) is "
             "asked for them one at a time");
  module.def("write_weight_files", &write_weights, py::arg("folder"), py::arg("weights"), py::arg("aliases"),
             py::arg("safetensors"), py::arg("max_shard_size"),
             "model.safetensors or pytorch_model.bin, in files of at most that size with an index; \"\": one file",
             py::call_guard<py::gil_scoped_release>());
  module.def("read_latest", &checkpoint::read_latest, py::arg("folder"),
             "The tag in <folder>/latest; empty when there is none");
  module.def("check_tag", &checkpoint::check_tag, py::arg("tag"), py::arg("where"),
             "DataError for a tag that could lead out of its folder");
  py::class_<NewFolder>(module, "NewFolder")
      .def(py::init<fs::path>(), py::arg("path"))
      .def("__enter__", &NewFolder::enter)
      .def("__exit__", &NewFolder::exit);
  module.def("replace_file", &storage::write_file_atomically, py::arg("path"), py::arg("text"),
             "Written aside, fsynced, renamed", py::call_guard<py::gil_scoped_release>());
}

}  // namespace tessera::python
