#include "tessera/zero/unit_builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "tessera/base/error.h"

namespace tessera::zero {
namespace {

// Checked against its specification, which says what part of it this rank has.
NamedParam placed(NamedParam param, const comm::Mesh& mesh) {
  if (param.spec.shape.empty() && param.spec.shards.empty()) param.spec.shape = param.full_shape();
  param.box = layout::local_box(param.spec, mesh.shape(), mesh.rank());
  param.counts = layout::is_first_holder(param.spec, mesh.shape(), mesh.rank());
  const std::vector<int64_t> expected = layout::shape_of_part(param.spec, param.box);
  if (expected == param.full_shape()) return param;
  throw Error(ErrorKind::kUsage,
              {fmt::format("the parameter '{}' is of shape [{}] on rank {}, but its specification makes it [{}]",
                           param.name(), fmt::join(param.full_shape(), ", "), mesh.rank(), fmt::join(expected, ", ")),
               "initialize", "give ParamSpec::shape the global shape, and name the dimensions that ranks share"});
}

enum class Kind { kTrained, kFrozen, kBytes };

Kind kind_of(const NamedParam& param) {
  if (param.is_bytes()) return Kind::kBytes;
  return param.trainable() ? Kind::kTrained : Kind::kFrozen;
}

// What parameters of one module have in common that are in one unit.
struct UnitKind {
  std::vector<std::string> in_parts;
  Kind kind;
  auto operator<=>(const UnitKind&) const = default;
};

std::string unit_name(const std::string& module, const UnitKind& of) {
  std::string name = module;
  if (!of.in_parts.empty()) name += fmt::format(" ({})", fmt::join(of.in_parts, ", "));
  return name + (of.kind == Kind::kTrained ? "" : of.kind == Kind::kFrozen ? " (frozen)" : " (bytes)");
}

// In the order in which units are made, the same on every rank.
std::vector<UnitKind> unit_kinds(const ModuleParams& module, const layout::MeshShape& mesh) {
  std::set<std::vector<std::string>> in_parts{{}};
  for (const NamedParam& param : module.params) in_parts.insert(layout::data_axes_in_parts(param.spec, mesh));
  std::vector<UnitKind> kinds;
  for (const std::vector<std::string>& axes : in_parts) {
    for (const Kind kind : {Kind::kTrained, Kind::kFrozen, Kind::kBytes}) kinds.push_back({axes, kind});
  }
  return kinds;
}

int64_t trainable_numel(const std::vector<ModuleParams>& modules) {
  std::unordered_set<const at::TensorImpl*> seen;
  int64_t numel = 0;
  for (const ModuleParams& module : modules) {
    for (const NamedParam& param : module.params) {
      const bool counts = param.trainable() && seen.insert(param.tensor.unsafeGetTensorImpl()).second;
      if (counts) numel += param.numel();
    }
  }
  return numel;
}

// The policy of each unit in turn: the first units' parameters stay in memory as far as the allowance goes, the first
// units' optimizer state is offloaded as far as the share goes, and small units persist.
class Allowances {
 public:
  Allowances(const BuildInput& input)
      : policy_(input.policy),
        stays_in_memory_(policy_.offload.param_options.max_in_cpu),
        leaves_(policy_.offload.optimizer_options.ratio * static_cast<double>(trainable_numel(input.modules))),
        may_persist_(policy_.residency.model_persistence_threshold),
        params_may_persist_(policy_.residency.model_persistence_threshold) {}

  Policy policy_for(int64_t numel, Kind kind, int shards) {
    Policy policy = policy_;
    if (kind == Kind::kBytes) policy.compute_dtype = at::kByte;
    stays_in_memory_ -= numel / shards;
    if (stays_in_memory_ >= 0) policy.offload.parameters = nullptr;
    if (static_cast<double>(trainable_before_) >= leaves_) {
      policy.offload.optimizer = nullptr;
      policy.offload.optimizer_on_host = false;
    }
    if (kind == Kind::kTrained) trainable_before_ += numel;
    return policy;
  }

  bool unit_persists(int64_t numel) { return takes(numel, may_persist_); }

  // Where programs expect it.
  bool param_persists(const NamedParam& param) {
    if (!policy_.shard_parameters || !policy_.placeholders_as_deepspeed || param.is_bytes()) return false;
    return takes(param.numel(), params_may_persist_);
  }

 private:
  bool takes(int64_t numel, int64_t& left) const {
    if (numel > policy_.residency.param_persistence_threshold || numel > left) return false;
    left -= numel;
    return true;
  }

  const Policy& policy_;
  int64_t stays_in_memory_;  // elements, what is left of that allowance
  double leaves_;            // elements
  int64_t trainable_before_ = 0;
  int64_t may_persist_;         // elements of units, what is left of that allowance
  int64_t params_may_persist_;  // … and of parameters
};

}  // namespace

void build_units(BuildInput input, BuiltUnits& built, const std::function<void(size_t)>& made) {
  for (ModuleParams& module : input.modules) {
    for (NamedParam& param : module.params) {
      if (param.tensor.scalar_type() == at::kByte) param.spec.storage = layout::Storage::kBytes;
    }
  }
  std::unordered_map<const at::TensorImpl*, std::string> first_names;
  Allowances allowances(input);
  for (const ModuleParams& module : input.modules) {
    std::vector<size_t> used;
    const auto uses = [&used](size_t unit) {
      if (std::find(used.begin(), used.end(), unit) == used.end()) used.push_back(unit);
    };
    for (const UnitKind& of : unit_kinds(module, input.mesh.shape())) {
      const size_t next = built.units.size();
      std::vector<NamedParam> own;
      for (const NamedParam& param : module.params) {
        if (kind_of(param) != of.kind) continue;
        if (layout::data_axes_in_parts(param.spec, input.mesh.shape()) != of.in_parts) continue;
        const at::TensorImpl* const identity = param.tensor.unsafeGetTensorImpl();
        const auto [first, is_new] = first_names.try_emplace(identity, param.name());
        if (is_new) {
          built.places[identity] = {next, own.size()};
          own.push_back(placed(param, input.mesh));
        } else if (built.places.at(identity).unit < next) {
          uses(built.places.at(identity).unit);
        }
        if (first->second != param.name()) built.aliases.push_back({param.name(), first->second});
      }
      if (own.empty()) continue;
      uses(next);
      int64_t numel = 0;
      for (NamedParam& param : own) {
        numel += param.numel();
        param.persists = allowances.param_persists(param);
      }
      const DataGroups& groups = input.groups.of(of.in_parts);
      const Policy policy = allowances.policy_for(numel, of.kind, groups.shard->size());
      built.units.push_back(
          std::make_unique<Unit>(unit_name(module.name, of), std::move(own), input.needs, policy, groups, input.fill));
      built.in_parts.push_back(of.in_parts);
      made(next);
      built.units.back()->release();
      built.persistent.push_back(allowances.unit_persists(numel));
    }
    built.of_module.push_back(std::move(used));
  }
}

}  // namespace tessera::zero
