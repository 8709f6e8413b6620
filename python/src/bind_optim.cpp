// RunningSchedule, LossScaler and NativeOptimizer: the C++ schedules, loss scale and optimizers for Python's own
// objects, which also work without an engine; and rules that they and functions on tensors share with the engine.
#include <ATen/ops/zeros.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "bindings.h"
#include "json.h"
#include "param_groups.h"
#include "tessera/config/ds_config.h"
#include "tessera/optim/clip.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/muon.h"
#include "tessera/optim/optimizers.h"
#include "tessera/optim/running_schedule.h"

namespace tessera::python {

namespace py = pybind11;

namespace {

// The block of a ds_config, checked and with its defaults filled in.
config::DsConfig config_with(const char* block, const std::string& type, const py::dict& params) {
  config::Json config{{"train_batch_size", 1}};
  config[block] = {{"type", type}, {"params", json_of(params)}};
  return config::parse_ds_config(config, type, {.unknown_keys_are_errors = false});
}

// `rates`: of the optimizer's groups, before any schedule.
std::shared_ptr<optim::RunningSchedule> make_schedule(const std::string& type, const py::dict& params,
                                                      const std::vector<double>& rates) {
  const config::SchedulerOptions options = *config_with("scheduler", type, params).scheduler;
  std::vector<optim::ParamGroup> groups;
  for (const double rate : rates) groups.push_back({.lr = rate});
  return std::make_shared<optim::RunningSchedule>(optim::schedules().find(options.type, options.where).make(options),
                                                  std::move(groups),
                                                  options.params.value("last_batch_iteration", int64_t{-1}));
}

py::tuple values_of(const optim::RunningSchedule& schedule, size_t group) {
  const optim::ScheduledValues values = schedule.values(group);
  return py::make_tuple(values.lr, values.beta1, values.beta2);
}

optim::LossScaler make_scaler(double initial, int64_t window, double min, int64_t hysteresis, bool consecutive,
                              std::optional<double> factor, const py::object& state) {
  const config::LossScaling options{.enabled = true,
                                    .initial = initial,
                                    .window = window,
                                    .hysteresis = hysteresis,
                                    .consecutive_hysteresis = consecutive,
                                    .min = min};
  optim::LossScaler scaler = factor ? optim::LossScaler(options, *factor) : optim::LossScaler(options);
  if (!state.is_none()) scaler.set_state(json_of(state));
  return scaler;
}

// One rank that owns all of every parameter.
class Alone : public optim::Peers {
 public:
  std::vector<double> sum_by_param(std::span<const optim::ParamShard>, std::span<const double> of_shards,
                                   size_t /*width*/) override {
    return {of_shards.begin(), of_shards.end()};
  }
  std::vector<at::Tensor> whole_grads(std::span<const optim::ParamShard> shards) override {
    std::vector<at::Tensor> grads;
    for (const optim::ParamShard& shard : shards) grads.push_back(shard.grad);
    return grads;
  }
  void mean_by_signs(std::span<const optim::ParamShard>, std::span<at::Tensor>, std::span<const at::Tensor>) override {}
  void clear_sign_errors() override {}
};

class NativeOptimizer {
 public:
  NativeOptimizer(const std::string& type, const py::dict& params) {
    const config::DsConfig config = config_with("optimizer", type, params);
    optimizer_ = optim::optimizers().find(config.optimizer->type, config.optimizer->where).make(*config.optimizer);
    for (const optim::ParamGroup& group : optim::param_groups(*config.optimizer)) groups_.push_back(group);
  }

  std::vector<std::string> state_names() const { return optimizer_->state_names(); }
  std::vector<std::string> number_names() const { return optimizer_->number_names(); }

  // All tensors: whole parameters, fp32, contiguous. Weights and states change in place; returns the numbers.
  std::vector<double> update(const at::Tensor& weight, const at::Tensor& grad, const std::vector<at::Tensor>& state,
                             std::vector<double> numbers, int64_t step, const py::dict& group) const {
    const std::vector<optim::ParamGroup> groups{param_group_of(group, groups_.front())};
    const py::gil_scoped_release no_gil;
    // Slices are a multiple of 16 elements long: see optim/optimizer.h.
    const int64_t numel = weight.numel(), padded = (numel + 15) / 16 * 16;
    const auto flat = [&](const at::Tensor& tensor) {
      if (padded == numel) return tensor.view({-1});
      at::Tensor copy = at::zeros({padded}, at::kFloat);
      copy.narrow(0, 0, numel).copy_(tensor.view({-1}));
      return copy;
    };
    const auto put_back = [&](const at::Tensor& kept, const at::Tensor& updated) {
      if (padded != numel) kept.view({-1}).copy_(updated.narrow(0, 0, numel));
    };
    optim::ParamShard shard{.weight = flat(weight), .grad = flat(grad), .state = {}, .step = step, .numbers = numbers};
    for (const at::Tensor& each : state) shard.state.push_back(flat(each));
    const std::vector<optim::WholeParam> params{{"parameter", weight.sizes().vec(), numel, 0}};
    Alone peers;
    optimizer_->update({&shard, 1}, {.groups = groups, .step = step, .params = params, .peers = &peers});
    put_back(weight, shard.weight);
    for (size_t k = 0; k < state.size(); ++k) put_back(state[k], shard.state[k]);
    return numbers;
  }

 private:
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<optim::ParamGroup> groups_;
};

}  // namespace

void bind_optim(py::module_& module) {
  using optim::RunningSchedule;
  py::class_<RunningSchedule, std::shared_ptr<RunningSchedule>>(module, "RunningSchedule")
      .def(py::init(&make_schedule), py::arg("type"), py::arg("params"), py::arg("rates"))
      .def_property("n", &RunningSchedule::n, &RunningSchedule::set_n)
      .def("values", &values_of, py::arg("group"), "(lr, beta1 or None, beta2 or None) of the next step")
      .def(
          "terms", [](const RunningSchedule& self, size_t group) { return object_of(self.terms(group)); },
          py::arg("group"), "The numbers of the formula, by name");
  using optim::LossScaler;
  py::class_<LossScaler>(module, "LossScaler")
      .def(py::init(&make_scaler), py::arg("initial"), py::arg("window"), py::arg("min"), py::arg("hysteresis"),
           py::arg("consecutive_hysteresis"), py::arg("factor") = py::none(), py::arg("state") = py::none())
      .def_property_readonly("factor", &LossScaler::factor)
      .def_property_readonly("at_the_end", &LossScaler::at_the_end)
      .def_property_readonly("state", [](const LossScaler& self) { return object_of(self.state()); })
      .def("update", &LossScaler::update, py::arg("overflow"));
  module.def("schedule_names", [] { return optim::schedules().names(); });
  module.def(
      "optimizer_params",
      [](const std::string& type, const py::dict& params) {
        return object_of(config_with("optimizer", type, params).optimizer->params);
      },
      py::arg("type"), py::arg("params"), "All of them, with defaults, and with what the type makes of them");
  module.def("is_muons", &optim::is_muons, py::arg("name"), py::arg("dimensions"));
  module.def("clip_factor", &optim::clip_factor, py::arg("norm"), py::arg("max_norm"), py::arg("epsilon"));
  py::class_<NativeOptimizer>(module, "NativeOptimizer")
      .def(py::init<const std::string&, const py::dict&>(), py::arg("type"), py::arg("params"))
      .def_property_readonly("state_names", &NativeOptimizer::state_names)
      .def_property_readonly("number_names", &NativeOptimizer::number_names)
      .def("update", &NativeOptimizer::update, py::arg("weight"), py::arg("grad"), py::arg("state"), py::arg("numbers"),
           py::arg("step"), py::arg("group"));
}

}  // namespace tessera::python
