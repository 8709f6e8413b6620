// From a model's modules to the units that hold its training state: which parameters form a unit, what each of them is
// by its specification, which units rest where, and which stay unsharded.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/comm/mesh.h"
#include "tessera/zero/residency.h"

namespace tessera::zero {

// What one announcing module uses: its own parameters and those of modules inside it that do not announce themselves.
struct ModuleParams {
  std::string name;
  std::vector<NamedParam> params;
};

struct ParamAlias {
  std::string name;       // another name under which the model lists …
  std::string canonical;  // … this parameter
};

struct ParamPlace {
  size_t unit, param;
};

struct BuiltUnits {
  Units units;
  std::vector<std::vector<size_t>> of_module;      // which each module's forward reads
  std::vector<bool> persistent;                    // see Residency
  std::vector<std::vector<std::string>> in_parts;  // of each unit: see DataGroups::of
  std::vector<ParamAlias> aliases;
  std::unordered_map<const c10::TensorImpl*, ParamPlace> places;  // by the parameter's identity
};

struct BuildInput {
  std::vector<ModuleParams> modules;
  OptimizerNeeds needs;
  const Policy& policy;
  const comm::Mesh& mesh;
  UnitGroups& groups;  // over which units gather
  const FillParameter& fill;
};

// Each module's trainable parameters make a unit, its frozen ones another, its bytes a third; those of which ranks have
// different parts over data axes are in units of their own. A parameter that several modules share belongs to the
// first. `made` is called with each unit's number while it is still unsharded; then it is released, so that no more
// than one is. Collective. ErrorKind::kUsage names a parameter that is not what its specification says.
void build_units(BuildInput input, BuiltUnits& built, const std::function<void(size_t)>& made);

}  // namespace tessera::zero
