#include "tessera/engine/model_tree.h"

#include <fmt/format.h>
#include <torch/nn/modules/dropout.h>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/unit_tree.h"

namespace tessera::engine {
AnnouncedTree tree_of(torch::nn::Module& model) {
  AnnouncedTree found{.tree = {.modules = {{"model", {}}}, .buffers = model.buffers()}, .announcing = {nullptr}};
  nn::visit_units(model, [&found](const nn::ModuleOfUnit& visited) {
    if (visited.begins != nullptr) {
      found.tree.modules.push_back({visited.path, {}});
      found.announcing.push_back(visited.begins);
    }
    if (const auto* dropout = dynamic_cast<const torch::nn::DropoutImpl*>(&visited.module)) {
      found.tree.facts.push_back(fmt::format("dropout '{}' of {}", visited.path, dropout->options.p()));
    }
    const auto* const parts = dynamic_cast<const nn::HoldsParts*>(&visited.module);
    for (const auto& item : visited.module.named_parameters(/*recurse=*/false)) {
      layout::ParamSpec spec{.name = visited.name_of(item.key())};
      if (parts != nullptr) parts->specify(item.key(), spec);
      found.tree.modules[visited.unit].params.push_back({.spec = std::move(spec), .tensor = item.value()});
    }
  });
  return found;
}

std::shared_ptr<torch::nn::Module> required_model(std::shared_ptr<torch::nn::Module> model) {
  if (model) return model;
  throw Error(ErrorKind::kUsage, {"there is no model to train", "the first argument of initialize()",
                                  "pass a std::shared_ptr to a module, or a holder that is not empty"});
}

}  // namespace tessera::engine
