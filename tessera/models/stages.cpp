#include "tessera/models/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/layout/mesh_shape.h"
#include "tessera/nn/expert_axis.h"
#include "tessera/nn/tensor_axis.h"
#include "tessera/pipeline/partition.h"

namespace tessera::models {
namespace {

using Paths = std::set<std::string>;

bool is_below(const std::string& path, const std::string& module) {
  return path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.';
}

bool is_at_or_below(const std::string& path, const Paths& modules) {
  return std::any_of(modules.begin(), modules.end(),
                     [&](const auto& module) { return path == module || is_below(path, module); });
}

Paths modules_of(const Link& link) {
  Paths modules(link.modules.begin(), link.modules.end());
  modules.insert(link.others.begin(), link.others.end());
  return modules;
}

std::vector<int> ranks_of_links(const StageBounds& stages) {
  std::vector<int> ranks;
  for (size_t stage = 0; stage < stages.rank_of_stage.size(); ++stage) {
    for (int64_t link = stages.bounds[stage]; link < stages.bounds[stage + 1]; ++link) {
      ranks.push_back(stages.rank_of_stage[stage]);
    }
  }
  return ranks;
}

// Of each parameter, the ranks that have one of its links, rising.
std::map<std::string, std::vector<int>> holders_of(const Network& whole, const StageBounds& stages) {
  const std::vector<Link> links = whole.links();
  const std::vector<int> ranks = ranks_of_links(stages);
  TESSERA_INVARIANT(ranks.size() == links.size());
  std::map<std::string, std::set<int>> found;
  for (size_t link = 0; link < links.size(); ++link) {
    const Paths modules = modules_of(links[link]);
    for (const auto& item : whole.named_parameters()) {
      if (is_at_or_below(item.key(), modules)) found[item.key()].insert(ranks[link]);
    }
  }
  std::map<std::string, std::vector<int>> holders;
  for (const auto& item : whole.named_parameters()) {
    const std::set<int>& of_parameter = found[item.key()];
    TESSERA_INVARIANT(!of_parameter.empty());
    holders[item.key()] = {of_parameter.begin(), of_parameter.end()};
  }
  return holders;
}

// Takes out what is below `module`, at `path`, and not kept. A module above a kept one stays, but holds nothing itself.
void remove_others(torch::nn::Module& module, const std::string& path, const Paths& kept) {
  for (const auto& child : module.named_children()) {
    const std::string at = path.empty() ? child.key() : path + "." + child.key();
    if (is_at_or_below(at, kept)) continue;
    const bool leads_to_kept =
        std::any_of(kept.begin(), kept.end(), [&](const auto& each) { return is_below(each, at); });
    if (leads_to_kept) {
      TESSERA_INVARIANT(child.value()->parameters(/*recurse=*/false).empty());
      remove_others(*child.value(), at, kept);
    } else {
      module.unregister_module(child.key());
    }
  }
}

}  // namespace

std::vector<double> arithmetic_of_links(const Network& network, double target_share) {
  std::vector<double> weights;
  for (const Link& link : network.links()) {
    const Paths modules(link.modules.begin(), link.modules.end());
    weights.push_back(0);
    for (const auto& item : network.named_parameters()) {
      if (!is_at_or_below(item.key(), modules)) continue;
      const bool of_experts = !link.experts.empty() && is_below(item.key(), link.experts);
      const double share = of_experts ? link.share_of_experts : 1;
      weights.back() += share * static_cast<double>(item.value().numel());
    }
  }
  if (!weights.empty()) weights.back() *= target_share;
  return weights;
}

namespace {

constexpr std::string_view kByType = "type:";

std::vector<double> parameters_of_links(const Network& network) {
  std::vector<double> weights;
  for (const Link& link : network.links()) {
    const Paths modules = modules_of(link);
    weights.push_back(0);
    for (const auto& item : network.named_parameters()) {
      if (is_at_or_below(item.key(), modules)) weights.back() += static_cast<double>(item.value().numel());
    }
  }
  return weights;
}

std::vector<double> links_of_kind(const Network& network, const std::string& pattern, const std::string& where) {
  std::vector<double> weights;
  std::set<std::string> kinds;
  try {
    const std::regex kind(pattern, std::regex::ECMAScript | std::regex::icase);
    for (const Link& link : network.links()) {
      weights.push_back(std::regex_search(link.kind, kind) ? 1 : 0);
      kinds.insert(link.kind);
    }
  } catch (const std::regex_error& error) {
    throw Error(ErrorKind::kConfig, {fmt::format("'{}' is no regular expression: {}", pattern, error.what()), where,
                                     "write one such as type:layer"});
  }
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 0; })) {
    throw Error(ErrorKind::kConfig, {fmt::format("'{}' is the kind of nothing in the model", pattern), where,
                                     fmt::format("it has {}", fmt::join(kinds, ", "))});
  }
  return weights;
}

std::vector<double> weights_of_links(const Network& network, const Partition& partition, double target_share,
                                     const std::string& where) {
  const std::string& by = partition.by;
  if (by == "time" && !partition.seconds.empty()) return partition.seconds;
  if (by == "arithmetic" || by == "time") return arithmetic_of_links(network, target_share);
  if (by == "parameters") return parameters_of_links(network);
  if (by == "uniform") return std::vector<double>(network.links().size(), 1);
  if (by.starts_with(kByType)) return links_of_kind(network, by.substr(kByType.size()), where);
  throw Error(ErrorKind::kConfig, {fmt::format("layers are not shared out by '{}'", by), where,
                                   "use arithmetic, parameters, time, uniform or type:<regular expression>"});
}

std::vector<int64_t> bounds_by_hand(const Network& network, const std::vector<int64_t>& sizes, int stages,
                                    const std::string& where) {
  const auto links = static_cast<int64_t>(network.links().size());
  std::vector<int64_t> bounds{0};
  for (const int64_t size : sizes) bounds.push_back(bounds.back() + size);
  if (static_cast<int>(sizes.size()) != stages || bounds.back() != links) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("{} are sizes of {} with {} in all", fmt::join(sizes, ", "),
                             count_of(static_cast<int64_t>(sizes.size()), "stage"), bounds.back()),
                 where,
                 fmt::format("give {}, which add up to {}: the embeddings and the head count as one each",
                             count_of(stages, "size"), links)});
  }
  return bounds;
}

}  // namespace

StageBounds balanced_stages(const Network& network, const pipeline::Schedule& schedule, double target_share) {
  return {.bounds = pipeline::balanced_bounds(arithmetic_of_links(network, target_share), schedule.stages()),
          .rank_of_stage = schedule.rank_of_stage};
}

StageBounds partitioned_stages(const Network& network, const Partition& partition, const pipeline::Schedule& schedule,
                               double target_share, const std::string& where) {
  const std::vector<double> weights =
      partition.sizes.empty() ? weights_of_links(network, partition, target_share, where) : std::vector<double>();
  return {.bounds = partition.sizes.empty() ? pipeline::balanced_bounds(weights, schedule.stages())
                                            : bounds_by_hand(network, partition.sizes, schedule.stages(), where),
          .rank_of_stage = schedule.rank_of_stage};
}

std::string describe(const StageBounds& stages, const std::vector<Link>& links) {
  std::map<std::string, int> of_kind, seen;
  for (const Link& link : links) ++of_kind[link.kind];
  std::string text;
  for (size_t stage = 0; stage + 1 < stages.bounds.size(); ++stage) {
    std::vector<std::string> parts;
    for (auto link = static_cast<size_t>(stages.bounds[stage]); link < static_cast<size_t>(stages.bounds[stage + 1]);) {
      const std::string& kind = links[link].kind;
      const int first = seen[kind];
      for (; link < static_cast<size_t>(stages.bounds[stage + 1]) && links[link].kind == kind; ++link) ++seen[kind];
      const int last = seen[kind] - 1;
      if (of_kind[kind] == 1)
        parts.push_back(kind);
      else if (first == last)
        parts.push_back(fmt::format("{} {}", kind, first));
      else
        parts.push_back(fmt::format("{}s {}-{}", kind, first, last));
    }
    text += fmt::format("{}stage {}: {}", text.empty() ? "" : "; ", stage, fmt::join(parts, ", "));
  }
  return text;
}

std::function<void(layout::ParamSpec&)> keep_stages_of(int rank, Network& network, const StageBounds& stages) {
  auto holders = holders_of(network, stages);
  const std::vector<Link> links = network.links();
  const std::vector<int> ranks = ranks_of_links(stages);
  Paths kept;
  for (size_t link = 0; link < links.size(); ++link) {
    if (ranks[link] == rank) kept.merge(modules_of(links[link]));
  }
  remove_others(network, "", kept);
  return [holders = std::move(holders)](layout::ParamSpec& spec) {
    spec.holders.push_back({layout::kPipelineAxis, holders.at(spec.name)});
  };
}

std::vector<at::Tensor> run_stage(Network& network, const StageBounds& stages, int stage,
                                  const std::vector<at::Tensor>& entering, const NamedTensors& batch) {
  const auto bound = [&](int of) { return static_cast<size_t>(stages.bounds[static_cast<size_t>(of)]); };
  return network.run_links(bound(stage), bound(stage + 1), entering, batch);
}

ModelCensus census_of_stages(const Model& model, const std::string& class_name, const std::string& where,
                             const PartRanks& ranks, const StageBounds& stages) {
  ModelCensus whole = census_of(model, class_name, where, ranks), most;
  for (const int rank : std::set<int>(stages.rank_of_stage.begin(), stages.rank_of_stage.end())) {
    const auto network = model.network_over(nn::TensorAxis::of_size(ranks.tensor));
    const std::vector<std::string> experts = network->share_experts(nn::ExpertAxis::of_size(ranks.expert));
    keep_stages_of(rank, *network, stages);
    ModelCensus part = count_parameters(*network, experts, ranks.expert);
    if (part.params > most.params) most = std::move(part);
  }
  most.source = std::move(whole.source);
  most.architecture = whole.architecture;
  return most;
}

}  // namespace tessera::models
