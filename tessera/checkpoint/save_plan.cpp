#include "tessera/checkpoint/save_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::checkpoint {
namespace {

bool is_stored(const zero::Unit& unit, const SaveInput& input) {
  if (unit.is_bytes() && !input.options.bytes) return false;
  return unit.trainable() || !input.options.trainable_only;
}

bool has_states(const zero::Unit& unit, const SaveInput& input) {
  return unit.trainable() && input.options.optimizer_states;
}

std::vector<std::string> kinds_of(const zero::Unit& unit, const SaveInput& input) {
  std::vector<std::string> kinds{kWeight};
  if (has_states(unit, input)) {
    kinds.insert(kinds.end(), input.optimizer_states.begin(), input.optimizer_states.end());
  }
  return kinds;
}

const zero::StateTensor& stored(const zero::Unit& unit, size_t kind) {
  return kind == 0 ? unit.stored_weights() : unit.optimizer_state()[kind - 1];
}

void add_whole(ShardPlan& plan, const char* kind, const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) {
    plan.sources.push_back({.tensor = zero::StateTensor(tensor.flatten()), .cuts = {{0, tensor.numel()}}});
    plan.entries.push_back({piece_name(kind, name), tensor.scalar_type(), tensor.sizes().vec()});
  }
}

}  // namespace

bool ShardPlan::in_memory() const {
  return std::none_of(sources.begin(), sources.end(), [](const Source& source) { return source.tensor.swapped(); });
}

ShardPlan plan_shard(const SaveInput& input) {
  ShardPlan plan;
  for (const auto& unit : input.model.units()) {
    if (!is_stored(*unit, input)) continue;
    const auto kinds = kinds_of(*unit, input);
    const layout::Range mine = unit->saved_by(unit->groups().all->rank());
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      ShardPlan::Source source{.tensor = stored(*unit, kind), .cuts = {}};
      for (const layout::Segment& segment : unit->layout().segments(mine)) {
        const zero::NamedParam& param = unit->params()[segment.param];
        if (!param.counts) continue;
        const int64_t begin = segment.offset - unit->owned().begin;
        source.cuts.push_back({begin, begin + segment.numel});
        plan.entries.push_back({piece_name(kinds[kind], param.name()), source.tensor.dtype(), {segment.numel}});
      }
      plan.sources.push_back(std::move(source));
    }
  }
  if (leads(input)) add_whole(plan, kShared, input.shared_tensors);
  if (input.options.optimizer_states) add_whole(plan, kOfRank, input.rank_tensors);
  return plan;
}

Manifest plan_manifest(const SaveInput& input) {
  Manifest manifest{.tag = input.tag,
                    .world_size = input.model.world().size(),
                    .mesh = input.model.mesh().shape().axes(),
                    .trainable_only = input.options.trainable_only,
                    .node_local = input.options.node_local,
                    .diverged = input.options.diverged};
  manifest.engine_state = input.engine_state;
  manifest.client_state = input.client_state;
  for (const zero::ParamAlias& alias : input.model.aliases()) manifest.aliases[alias.name] = alias.canonical;
  return manifest;
}

std::map<std::string, StoredTensor> plan_tensors(const SaveInput& input) {
  std::map<std::string, StoredTensor> tensors;
  const bool all_know_all = !input.model.mesh().shape().holds_parts();
  for (const auto& unit : input.model.units()) {
    if (!is_stored(*unit, input)) continue;
    if (!all_know_all && unit->groups().all->rank() > 0) continue;
    const auto& params = unit->params();
    for (size_t index = 0; index < params.size(); ++index) {
      if (unit->layout().params()[index].numel == 0) {
        throw Error(ErrorKind::kUsage, {fmt::format("the parameter '{}' has no elements to save", params[index].name()),
                                        "save_checkpoint", "save the whole model, not one of its placeholders"});
      }
      if (!params[index].counts) continue;
      StoredTensor& tensor = tensors[params[index].name()];
      const layout::ParamSpec& spec = params[index].spec;
      tensor = {.shape = spec.shape, .folded = spec.folded, .kinds = kinds_of(*unit, input), .pieces = {}};
      if (!has_states(*unit, input)) continue;
      tensor.steps = unit->steps()[index];
      for (size_t k = 0; k < input.optimizer_numbers.size(); ++k) {
        tensor.numbers[input.optimizer_numbers[k]] = unit->numbers(index)[k];
      }
    }
    const std::vector<int>& ranks = unit->groups().all->members();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const layout::Segment& segment : unit->layout().segments(unit->saved_by(static_cast<int>(rank)))) {
        const zero::NamedParam& param = params[segment.param];
        if (!param.counts) continue;
        tensors[param.name()].pieces.push_back(
            {static_cast<size_t>(ranks[rank]), {param.box, {segment.first, segment.first + segment.numel}}});
      }
    }
  }
  return tensors;
}

void merge_tensors(std::map<std::string, StoredTensor>& tensors, std::map<std::string, StoredTensor> others) {
  for (auto& [name, other] : others) {
    const auto [found, is_new] = tensors.try_emplace(name, std::move(other));
    if (is_new) continue;
    StoredTensor& tensor = found->second;
    if (tensor.shape != other.shape || tensor.folded != other.folded || tensor.kinds != other.kinds) {
      throw Error(ErrorKind::kUsage, {fmt::format("ranks specify '{}' differently", name), "save_checkpoint",
                                      "give every rank that holds a part of a parameter the same global shape"});
    }
    tensor.pieces.insert(tensor.pieces.end(), other.pieces.begin(), other.pieces.end());
  }
}

void require_whole(const std::map<std::string, StoredTensor>& tensors, size_t files) {
  for (const auto& [name, tensor] : tensors) {
    const std::string wrong = why_not_whole(tensor, files);
    if (wrong.empty()) continue;
    throw Error(ErrorKind::kUsage, {fmt::format("the ranks' parts of '{}' do not make it whole: {}", name, wrong),
                                    "save_checkpoint", "check the specification of this parameter on every rank"});
  }
}

std::string describe_sizes(const SaveInput& input) {
  uint64_t weights = 0, states = 0;
  for (const auto& unit : input.model.units()) {
    if (!is_stored(*unit, input)) continue;
    const auto numel = static_cast<uint64_t>(unit->layout().param_numel());
    const size_t kinds = kinds_of(*unit, input).size();
    for (size_t kind = 0; kind < kinds; ++kind) {
      (kind == 0 ? weights : states) += numel * c10::elementSize(stored(*unit, kind).dtype());
    }
  }
  const int files = input.model.world().size();
  return fmt::format("{}: {} of weights, {} of optimizer state, in {}", format_bytes(weights + states),
                     format_bytes(weights), format_bytes(states), count_of(files, "file"));
}

}  // namespace tessera::checkpoint
