// A module tree as units: each module that announces its forward (unit_module.h) begins a unit, to which the modules
// inside it belong until another begins. What no other unit has belongs to the root's, number 0.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

#include "tessera/nn/unit_module.h"

namespace tessera::nn {

struct ModuleOfUnit {
  std::string path;  // "encoder.layer.0"; the root's is empty
  torch::nn::Module& module;
  size_t unit = 0;                   // counted in the order of the visits
  UnitModuleBase* begins = nullptr;  // the module itself, where it begins that unit; borrowed

  // "encoder.layer.0.weight" of a parameter that is the module's own.
  std::string name_of(const std::string& parameter) const { return path.empty() ? parameter : path + "." + parameter; }
};

// Calls `visit` for each module, a parent before its children, in the order in which they were registered.
void visit_units(torch::nn::Module& root, const std::function<void(const ModuleOfUnit& module)>& visit);

}  // namespace tessera::nn
