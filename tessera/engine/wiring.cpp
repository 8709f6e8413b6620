#include "tessera/engine/wiring.h"

#include "tessera/base/error.h"
#include "tessera/optim/optimizers.h"

namespace tessera::engine {
namespace {

at::ScalarType compute_dtype(config::Precision precision) {
  switch (precision) {
    case config::Precision::kFp32:
      return at::kFloat;
    case config::Precision::kBf16:
      return at::kBFloat16;
    case config::Precision::kFp16:
      return at::kHalf;
  }
  return at::kFloat;
}

struct ModuleTree {
  std::vector<zero::ModuleParams> modules;
  std::vector<nn::UnitModuleBase*> announcing;
};

// Each announcing module gets a number of its own; the parameters of others go to the announcing module around them.
void walk(torch::nn::Module& module, const std::string& path, size_t number, const InitializeOptions& options,
          ModuleTree& tree) {
  auto* const announces = dynamic_cast<nn::UnitModuleBase*>(&module);
  if (announces != nullptr && !path.empty()) {
    number = tree.modules.size();
    tree.modules.push_back({path, {}});
    tree.announcing.push_back(announces);
  }
  const auto full_name = [&path](const std::string& name) { return path.empty() ? name : path + "." + name; };
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const std::string name = full_name(item.key());
    const size_t group = options.no_decay && options.no_decay(name) ? 1 : 0;
    tree.modules[number].params.push_back({name, item.value(), group});
  }
  for (const auto& item : module.named_children()) walk(*item.value(), full_name(item.key()), number, options, tree);
}

void check_parameters(const ModuleTree& tree, bool has_fill) {
  bool any = false;
  for (const zero::ModuleParams& module : tree.modules) {
    for (const zero::NamedParam& param : module.params) {
      any = true;
      if (!at::isFloatingType(param.tensor.scalar_type())) {
        throw Error(ErrorKind::kUsage, {"the parameter '" + param.name + "' is not of a floating dtype", "initialize",
                                        "register it as a buffer"});
      }
      if (!has_fill && zero::is_declared_only(param.tensor)) {
        throw Error(ErrorKind::kUsage, {"the parameter '" + param.name + "' is declared but has no values",
                                        "initialize", "give InitializeOptions::fill, or materialize the model first"});
      }
    }
  }
  if (!any) throw Error(ErrorKind::kUsage, {"the model has no parameters", "initialize", "register them"});
}

std::vector<optim::ParamGroup> make_groups(const config::DsConfig& config) {
  optim::ParamGroup group;
  if (config.optimizer) {
    const config::OptimizerOptions& from = *config.optimizer;
    group = {
        .lr = from.lr, .beta1 = from.beta1, .beta2 = from.beta2, .eps = from.eps, .weight_decay = from.weight_decay};
  }
  optim::ParamGroup without_decay = group;
  without_decay.weight_decay = 0;
  return {group, without_decay};
}

}  // namespace

Wiring wire(torch::nn::Module& model, const config::DsConfig& config, const InitializeOptions& options,
            std::shared_ptr<comm::Communicator> world) {
  if (!config.optimizer) {
    throw Error(ErrorKind::kConfig, {"the configuration has no 'optimizer'", config.name,
                                     R"(add e.g. "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}})"});
  }
  ModuleTree tree{.modules = {{"model", {}}}, .announcing = {nullptr}};
  walk(model, "", 0, options, tree);
  check_parameters(tree, static_cast<bool>(options.fill));

  Wiring wiring;
  wiring.optimizer = optim::optimizers().find(config.optimizer->type, config.optimizer->where).make(*config.optimizer);
  if (config.scheduler) {
    wiring.schedule = optim::schedules().find(config.scheduler->type, config.scheduler->where).make(*config.scheduler);
  }
  wiring.groups = make_groups(config);
  wiring.announcing = std::move(tree.announcing);
  const zero::Policy policy = zero::policy_of_stage(config.zero.stage, compute_dtype(config.precision), world->size());
  wiring.sharded = zero::ShardedModel::create(std::move(tree.modules), wiring.optimizer->state_names().size(), policy,
                                              std::move(world), options.fill);
  return wiring;
}

}  // namespace tessera::engine
