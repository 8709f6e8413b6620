#include "tessera/engine/same_run.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "tessera/comm/agreement.h"

namespace tessera::engine {
namespace {

constexpr const char* kWhere = "initialize";

std::string facts_of_optimizer(const optim::Optimizer& optimizer, const std::vector<optim::ParamGroup>& groups) {
  std::string text = fmt::format("an optimizer that keeps [{}] of each element and [{}] of each parameter\n",
                                 fmt::join(optimizer.state_names(), ", "), fmt::join(optimizer.number_names(), ", "));
  for (size_t i = 0; i < groups.size(); ++i) {
    const optim::ParamGroup& group = groups[i];
    text += fmt::format("group {}: lr = {}, betas = ({}, {}), eps = {}, weight_decay = {}, momentum = {}{}\n", i,
                        group.lr, group.beta1, group.beta2, group.eps, group.weight_decay, group.momentum,
                        group.orthogonalized ? ", orthogonalized" : "");
  }
  return text;
}

// In the order in which the ranks will exchange the parameters: those that all ranks of the data axes have, or all.
std::string facts_of_model(const ModelTree& tree, const layout::MeshShape& mesh, bool all) {
  std::string text;
  for (const zero::ModuleParams& module : tree.modules) {
    for (const zero::NamedParam& param : module.params) {
      if (!all && !layout::data_axes_in_parts(param.spec, mesh).empty()) continue;
      text += fmt::format("parameter '{}' of shape [{}], {}{}, in the unit '{}' and group {}, of dtype {}\n",
                          param.name(), fmt::join(param.full_shape(), ", "), param.trainable() ? "trained" : "frozen",
                          param.has_values() || param.shape ? "" : ", without values", module.name, param.group,
                          c10::toString(param.tensor.scalar_type()));
    }
  }
  for (const std::string& fact : tree.facts) text += fact + "\n";
  return text;
}

}  // namespace

void require_same_run(const RunFacts& run, comm::Mesh& mesh) {
  const std::string fix = "give every rank the same configuration, and the same values to the program";
  comm::require_agreement(*mesh.world(),
                          {{"configuration", config::shared_lines(run.config.keys), fix},
                           {"optimizer", facts_of_optimizer(run.optimizer, run.groups), fix}},
                          kWhere);
  const std::string model_fix = "build the same model on every rank, with the same parameters in the same order";
  const auto facts = [&](bool all) {
    return std::vector<comm::SharedFacts>{{"model", facts_of_model(run.tree, mesh.shape(), all), model_fix}};
  };
  comm::require_agreement(*mesh.data_group(), facts(/*all=*/false), kWhere);
  if (mesh.shape().size(layout::kExpertAxis) > 1) {
    comm::require_agreement(*mesh.replica_group(), facts(/*all=*/true), kWhere);
  }
}

}  // namespace tessera::engine
