// Engine: any torch.nn.Module's training state in the C++ engine. Python announces when the forward of each module of
// the tree begins and ends (needed at stage 3 alone); gathering, reduction and update run here, without the GIL.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.h"
#include "json.h"
#include "param_groups.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/model_tree.h"
#include "tessera/optim/optimizers.h"
#include "tessera/optim/running_schedule.h"
#include "tessera/storage/cpu_allocator.h"
#include "tessera/zero/param_access.h"
#include "tessera/zero/partitioned_param.h"
#include "tessera/zero/sharded_step.h"
#include "torch_optimizer.h"

namespace tessera::python {

namespace py = pybind11;
using zero::ShardedModel;
using Place = std::pair<size_t, size_t>;  // unit, parameter of it

namespace {

constexpr size_t kFreedAtOnce = 16 << 20;  // bytes

// Of the modules that announce themselves; number 0 is the root.
struct Tree {
  engine::ModelTree tree{.placeholders_as_deepspeed = true};
  std::map<std::string, std::shared_ptr<zero::PartitionedParam>> partitioned;
};

void add_module(Tree& self, const std::string& name) { self.tree.modules.push_back({name, {}}); }

// Of each axis over which ranks hold parts: the dimension, of which they hold equal ones, or which parts they are. Of
// one over which some ranks alone hold a parameter: those.
using Placements = std::map<std::string, std::variant<int, std::pair<layout::Shard, int64_t>, std::vector<int>>>;

void add_param(Tree& self, size_t module, const std::string& name, const at::Tensor& parameter,
               const std::shared_ptr<zero::PartitionedParam>& partitioned, const Placements& placements,
               const comm::Mesh& mesh, bool is_bytes) {
  zero::NamedParam param{.spec = {.name = name}, .tensor = parameter};
  if (is_bytes) param.spec.storage = layout::Storage::kBytes;
  if (partitioned) {
    param.shape = partitioned->shape();
    self.partitioned[name] = partitioned;
  }
  if (!placements.empty()) param.spec.shape = param.full_shape();
  for (const auto& [axis, placement] : placements) {
    if (const auto* const holders = std::get_if<std::vector<int>>(&placement)) {
      param.spec.holders.push_back({axis, *holders});
      continue;
    }
    const auto* const cut = std::get_if<std::pair<layout::Shard, int64_t>>(&placement);
    param.spec.shards.push_back(cut != nullptr ? cut->first : layout::Shard{axis, std::get<int>(placement)});
    layout::Shard& added = param.spec.shards.back();
    const int64_t stacked = cut != nullptr ? cut->second : 1;
    const auto index = static_cast<size_t>(added.dim);  // one that is not there is an error of the specification's
    if (index >= param.spec.shape.size()) continue;
    int64_t& size = param.spec.shape[index];
    size = added.bounds.empty() ? size * mesh.shape().size(axis) : stacked * added.bounds.back();
    if (stacked == 1) continue;
    param.spec.folded = param.spec.shape;
    param.spec.folded[index] = size / stacked;
    param.spec.folded.insert(param.spec.folded.begin() + added.dim, stacked);
    ++added.dim;
  }
  self.tree.modules.at(module).params.push_back(std::move(param));
}

std::shared_ptr<Engine> make_engine(const Tree& tree, const config::DsConfig& config,
                                    const std::shared_ptr<comm::Mesh>& mesh, const py::list& groups,
                                    std::map<std::string, size_t> group_of, const py::object& torch_step,
                                    std::optional<at::Device> device) {
  InitializeOptions options{.mesh = mesh, .device = device};
  const std::vector<optim::ParamGroup> named =
      config.optimizer ? optim::param_groups(*config.optimizer) : std::vector<optim::ParamGroup>(1);
  for (const py::handle group : groups) {
    options.param_groups.push_back(param_group_of(group.cast<py::dict>(), named.front()));
  }
  if (options.param_groups.empty()) options.param_groups = named;
  options.group_of = [group_of = std::move(group_of)](const std::string& name) -> std::optional<size_t> {
    const auto found = group_of.find(name);
    return found == group_of.end() ? std::nullopt : std::optional(found->second);
  };
  if (!torch_step.is_none()) options.optimizer = std::make_shared<TorchOptimizer>(torch_step.cast<py::function>());
  if (!tree.partitioned.empty()) {
    options.fill = [partitioned = tree.partitioned, freed = size_t{0}](const std::string& name,
                                                                       const at::Tensor& value) mutable {
      zero::PartitionedParam& param = *partitioned.at(name);
      freed += param.piece().nbytes();
      const at::Tensor whole = param.take();
      value.copy_(value.scalar_type() == at::kByte ? whole.view(at::kByte) : whole);
      if (freed < kFreedAtOnce) return;
      freed = 0;
      storage::release_free_cpu_memory();  // allocators keep pieces beside the shards that they have become
    };
  }
  const py::gil_scoped_release no_gil;
  return std::make_shared<Engine>(tree.tree, config, options);
}

void set_param_groups(Engine& engine, const py::list& groups) {
  std::vector<optim::ParamGroup>& own = engine.param_groups();
  for (size_t index = 0; index < std::min(own.size(), groups.size()); ++index) {
    own[index] = param_group_of(groups[index].cast<py::dict>(), own[index]);
  }
}

py::list units(Engine& engine) {
  py::list list;
  for (const auto& unit : engine.sharded_model().units()) {
    std::vector<std::string> names;
    for (const zero::NamedParam& param : unit->params()) names.push_back(param.name());
    list.append(py::make_tuple(unit->name(), names, unit->trainable(), unit->layout().param_numel()));
  }
  return list;
}

std::optional<Place> place_of(Engine& engine, const at::Tensor& parameter) {
  const auto place = engine.sharded_model().place_of(parameter);
  return place ? std::optional(Place{place->unit, place->param}) : std::nullopt;
}

// "weight", "grad", or the name of one of the optimizer's states.
zero::StateOfParam state_of(const Engine& engine, const std::string& name) {
  using Kind = zero::StateOfParam::Kind;
  if (name == "weight") return {.kind = Kind::kWeight};
  if (name == "grad") return {.kind = Kind::kGrad};
  const std::vector<std::string> names = engine.optimizer().state_names();
  for (size_t k = 0; k < names.size(); ++k) {
    if (names[k] == name) return {.kind = Kind::kOptimizerState, .state = k};
  }
  throw py::key_error(name);
}

ShardedModel::ParamPlace place(const Place& pair) { return {pair.first, pair.second}; }

std::string save_checkpoint(Engine& engine, const std::string& folder, const std::string& tag, const py::object& client,
                            const checkpoint::TensorMap& shared, const checkpoint::TensorMap& of_rank, bool latest,
                            bool exclude_frozen) {
  const nlohmann::json client_state = json_of(client);
  const py::gil_scoped_release no_gil;
  checkpoint::SaveOptions options = engine.save_options();
  options.sets_latest = latest;
  options.trainable_only = exclude_frozen;
  options.bytes = false;  // see python/tessera/packed_weights.py
  return engine.save_checkpoint(folder, tag, client_state, options, {.shared = shared, .of_rank = of_rank});
}

py::object load_checkpoint(Engine& engine, const std::string& folder, const std::string& tag, bool strict,
                           bool optimizer_states, bool schedule, bool weights_only) {
  std::optional<LoadedCheckpoint> loaded;
  {
    const py::gil_scoped_release no_gil;
    loaded = engine.load_checkpoint(folder, tag,
                                    {.strict = strict,
                                     .bytes = false,
                                     .optimizer_states = optimizer_states,
                                     .schedule = schedule,
                                     .weights_only = weights_only});
  }
  if (!loaded) return py::none();
  return py::make_tuple(loaded->path, object_of(loaded->client_state), loaded->tensors.shared, loaded->tensors.of_rank);
}

void refresh_master(Engine& engine) {
  const at::NoGradGuard no_grad;
  for (const auto& unit : engine.sharded_model().units()) {
    if (unit->trainable() && unit->has_master()) unit->master().store(unit->compute().load());
  }
}

}  // namespace

void bind_engine(py::module_& module) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Tree>(module, "ModelTree")
      .def(py::init<>())
      .def("add_module", &add_module, py::arg("name"))
      .def("add_param", &add_param, py::arg("module"), py::arg("name"), py::arg("parameter"), py::arg("partitioned"),
           py::arg("placements"), py::arg("mesh"), py::arg("is_bytes"),
           "placements: {axis: dimension} that the mesh's ranks hold equal parts of, {axis: (Shard, how many matrices "
           "lie "
           "along its dimension)}, or {axis: [coordinates]} of those that hold it; is_bytes: see layout::Storage")
      .def(
          "add_fact", [](Tree& self, const std::string& fact) { self.tree.facts.push_back(fact); }, py::arg("fact"))
      .def("add_buffer", [](Tree& self, const at::Tensor& buffer) { self.tree.buffers.push_back(buffer); });

  py::class_<Engine, std::shared_ptr<Engine>>(module, "Engine")
      .def(py::init(&make_engine), py::arg("tree"), py::arg("config"), py::arg("mesh"), py::arg("groups"),
           py::arg("group_of"), py::arg("torch_step"), py::arg("device"))
      .def("wants_announcement",
           [](Engine& self, size_t module) { return self.sharded_model().wants_announcement(module); })
      .def("before_forward", &Engine::before_forward, py::arg("module"), py::arg("inputs"), no_gil)
      .def("after_forward", &Engine::after_forward, py::arg("module"), py::arg("outputs"), no_gil)
      .def(
          "also_uses", [](Engine& self, size_t number, size_t unit) { self.sharded_model().also_uses(number, unit); },
          py::arg("module"), py::arg("unit"), no_gil)
      .def("running_module", [](Engine& self) { return self.sharded_model().running_module(); })
      .def(
          "backward",
          [](Engine& self, const at::Tensor& loss, bool divides, bool retain_graph) {
            return self.backward(loss, {.divides_by_accumulation = divides, .retain_graph = retain_graph});
          },
          py::arg("loss"), py::arg("divides_by_accumulation"), py::arg("retain_graph"), no_gil)
      .def("scale", &Engine::scale, py::arg("loss"))
      .def("step", &Engine::step, py::arg("samples") = 0, no_gil)
      .def("finish_update", &Engine::finish_update, no_gil)
      .def("abandon_pass", &Engine::abandon_pass, no_gil)
      .def("zero_grad", &Engine::zero_grad, no_gil)
      .def("reduce_accumulated", &Engine::reduce_accumulated, no_gil)
      .def("set_boundary", &Engine::set_gradient_accumulation_boundary, py::arg("boundary"))
      .def("is_boundary", &Engine::is_gradient_accumulation_boundary)
      .def(
          "set_batch",
          [](Engine& self, int64_t global, int64_t micro, int64_t accumulation) {
            self.set_batch({.global = global, .micro = micro, .accumulation = accumulation});
          },
          py::arg("global_batch"), py::arg("micro_batch"), py::arg("accumulation"))
      .def("set_param_groups", &set_param_groups, py::arg("groups"))
      .def("set_schedule", &Engine::set_schedule, py::arg("schedule"))
      .def("save_checkpoint", &save_checkpoint, py::arg("folder"), py::arg("tag"), py::arg("client_state"),
           py::arg("shared"), py::arg("of_rank"), py::arg("latest"), py::arg("exclude_frozen"))
      .def("load_checkpoint", &load_checkpoint, py::arg("folder"), py::arg("tag"), py::arg("strict"),
           py::arg("optimizer_states"), py::arg("schedule"), py::arg("weights_only"))
      .def("finish_saving", &Engine::finish_saving, no_gil)
      .def("save_16bit_model", &Engine::save_16bit_model, py::arg("folder"), py::arg("file"),
           py::arg("exclude_frozen_parameters"), no_gil)
      .def("refresh_master", &refresh_master, no_gil, "Master weights become what the parameters hold")
      .def("units", &units, "(name, names of its parameters, trainable, elements) of each")
      .def(
          "hold_units", [](Engine& self, const std::vector<size_t>& units) { self.sharded_model().hold_units(units); },
          no_gil)
      .def(
          "drop_units", [](Engine& self, const std::vector<size_t>& units) { self.sharded_model().drop_units(units); },
          no_gil)
      .def(
          "take_over", [](Engine& self, size_t unit, int root) { self.sharded_model().take_over(unit, root); },
          py::arg("unit"), py::arg("root"), no_gil)
      .def(
          "partitioned",
          [](Engine& self, const Place& at) {
            const zero::Unit& unit = *self.sharded_model().units().at(at.first);
            return std::make_shared<zero::PartitionedParam>(unit, at.second, unit.groups().shard);
          },
          no_gil)
      .def("place_of", &place_of, py::arg("parameter"))
      .def("is_trainable", [](Engine& self, size_t unit) { return self.sharded_model().units().at(unit)->trainable(); })
      .def_property_readonly("state_names", [](Engine& self) { return self.optimizer().state_names(); })
      .def(
          "full_value",
          [](Engine& self, const Place& at, const std::string& which) {
            return zero::full_value(self.sharded_model(), place(at), state_of(self, which));
          },
          no_gil)
      .def(
          "local_value",
          [](Engine& self, const Place& at, const std::string& which) {
            return zero::local_value(self.sharded_model(), place(at), state_of(self, which));
          },
          no_gil)
      .def(
          "assembled",
          [](Engine& self, const Place& at, const at::Tensor& local) {
            return zero::assembled(self.sharded_model(), place(at), local);
          },
          no_gil)
      .def(
          "set_full_value",
          [](Engine& self, const Place& at, const std::string& which, const at::Tensor& value) {
            zero::set_full_value(self.sharded_model(), place(at), state_of(self, which), value);
          },
          no_gil)
      .def(
          "set_local_value",
          [](Engine& self, const Place& at, const std::string& which, const at::Tensor& value) {
            zero::set_local_value(self.sharded_model(), place(at), state_of(self, which), value);
          },
          no_gil)
      .def(
          "take_written", [](Engine& self, const Place& at) { zero::take_written(self.sharded_model(), place(at)); },
          no_gil, "Weights become what the whole parameter holds now, where that is not what they round to")
      .def(
          "param_step",
          [](Engine& self, const Place& at) {
            return self.sharded_model().units().at(at.first)->steps().at(at.second);
          },
          "How many optimizer steps it has seen")
      .def("set_param_step",
           [](Engine& self, const Place& at, int64_t step) {
             self.sharded_model().units().at(at.first)->steps().at(at.second) = step;
           })
      .def_property_readonly("grad_norm", &Engine::get_global_grad_norm)
      .def_property_readonly("was_step_applied", &Engine::was_step_applied)
      .def_property_readonly("loss_scale", &Engine::loss_scale)
      .def_property_readonly("global_steps", &Engine::global_steps)
      .def_property_readonly("global_samples", &Engine::global_samples)
      .def_property_readonly("skipped_steps", &Engine::skipped_steps)
      .def_property_readonly("micro_steps", &Engine::micro_steps)
      .def_property_readonly("gradients_pending", &Engine::gradients_pending)
      .def_property_readonly("model_state_bytes", &Engine::model_state_bytes)
      .def_property_readonly("offloaded_bytes", &Engine::offloaded_bytes);
}

}  // namespace tessera::python
