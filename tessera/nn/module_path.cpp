#include "tessera/nn/module_path.h"

#include "tessera/base/error.h"

namespace tessera::nn {

std::pair<torch::nn::Module*, std::string> parent_of(torch::nn::Module& root, const std::string& path) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) return {&root, path};
  const std::string first = path.substr(0, dot);
  auto children = root.named_children();
  auto* const found = children.find(first);
  torch::nn::Module* child = nullptr;
  if (found != nullptr) {
    child = found->get();
  } else {
    child = root.register_module(first, std::make_shared<torch::nn::Module>(first)).get();
  }
  return parent_of(*child, path.substr(dot + 1));
}

std::string path_of(const torch::nn::Module& root, const torch::nn::Module& module) {
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    if (item.value().get() == &module) return item.key();
  }
  TESSERA_INVARIANT(!"the module is below the root");
}

}  // namespace tessera::nn
