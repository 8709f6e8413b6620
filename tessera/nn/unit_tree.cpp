#include "tessera/nn/unit_tree.h"

namespace tessera::nn {
namespace {

class Walk {
 public:
  explicit Walk(const std::function<void(const ModuleOfUnit& module)>& visit) : visit_(visit) {}

  void into(torch::nn::Module& module, const std::string& path, size_t unit) {
    // The root is a unit of its own, whether it announces its forward or not.
    auto* const begins = path.empty() ? nullptr : dynamic_cast<UnitModuleBase*>(&module);
    if (begins != nullptr) unit = ++last_unit_;
    const ModuleOfUnit visited{.path = path, .module = module, .unit = unit, .begins = begins};
    visit_(visited);
    for (const auto& item : module.named_children()) into(*item.value(), visited.name_of(item.key()), unit);
  }

 private:
  const std::function<void(const ModuleOfUnit& module)>& visit_;
  size_t last_unit_ = 0;
};

}  // namespace

void visit_units(torch::nn::Module& root, const std::function<void(const ModuleOfUnit& module)>& visit) {
  Walk(visit).into(root, "", 0);
}

}  // namespace tessera::nn
