#include "tessera/engine/model_tree.h"

#include <string>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::engine {
namespace {

// Each announcing module gets a number of its own; the parameters of others go to the announcing module around them.
void walk(torch::nn::Module& module, const std::string& path, size_t number, AnnouncedTree& found) {
  auto* const announces = dynamic_cast<nn::UnitModuleBase*>(&module);
  if (announces != nullptr && !path.empty()) {
    number = found.tree.modules.size();
    found.tree.modules.push_back({path, {}});
    found.announcing.push_back(announces);
  }
  const auto full_name = [&path](const std::string& name) { return path.empty() ? name : path + "." + name; };
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const std::string name = full_name(item.key());
    found.tree.modules[number].params.push_back({.spec = {.name = name}, .tensor = item.value()});
  }
  for (const auto& item : module.named_children()) walk(*item.value(), full_name(item.key()), number, found);
}

}  // namespace

AnnouncedTree tree_of(torch::nn::Module& model) {
  AnnouncedTree found{.tree = {.modules = {{"model", {}}}, .buffers = model.buffers()}, .announcing = {nullptr}};
  walk(model, "", 0, found);
  return found;
}

std::shared_ptr<torch::nn::Module> required_model(std::shared_ptr<torch::nn::Module> model) {
  if (model) return model;
  throw Error(ErrorKind::kUsage, {"there is no model to train", "the first argument of initialize()",
                                  "pass a std::shared_ptr to a module, or a holder that is not empty"});
}

}  // namespace tessera::engine
