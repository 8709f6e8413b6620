#include "tessera/models/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/nn/module_path.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::models {
namespace {

using Links = std::vector<std::vector<std::string>>;

bool is_below(const std::string& parameter, const std::string& module) {
  return parameter.size() > module.size() && parameter.starts_with(module) && parameter[module.size()] == '.';
}

bool is_of(const std::string& parameter, const std::vector<std::string>& link) {
  return std::any_of(link.begin(), link.end(), [&](const auto& module) { return is_below(parameter, module); });
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

}  // namespace

std::vector<double> arithmetic_of_links(const Network& network) {
  const Links links = network.links();
  std::vector<double> weights(links.size(), 0);
  for (const auto& item : network.named_parameters()) {
    for (size_t link = 1; link < links.size(); ++link) {
      if (is_of(item.key(), links[link])) weights[link] += static_cast<double>(item.value().numel());
    }
  }
  return weights;
}

std::string describe(const StageBounds& stages) {
  const int64_t head = stages.bounds.back() - 1;
  std::string text;
  for (size_t stage = 0; stage + 1 < stages.bounds.size(); ++stage) {
    const int64_t begin = stages.bounds[stage], end = stages.bounds[stage + 1];
    std::vector<std::string> parts;
    if (begin == 0) parts.emplace_back("embeddings");
    const int64_t first = std::max<int64_t>(begin, 1) - 1, last = std::min(end, head) - 2;  // of the layers
    if (first == last) parts.push_back(fmt::format("layer {}", first));
    if (first < last) parts.push_back(fmt::format("layers {}-{}", first, last));
    if (end > head) parts.emplace_back("head");
    text += fmt::format("{}stage {}: {}", text.empty() ? "" : "; ", stage, fmt::join(parts, ", "));
  }
  return text;
}

std::map<std::string, std::vector<int>> holders_of(const Network& whole, const StageBounds& stages) {
  const Links links = whole.links();
  const std::vector<int> ranks = ranks_of_links(stages);
  TESSERA_INVARIANT(ranks.size() == links.size());
  std::map<std::string, std::vector<int>> holders;
  for (const auto& item : whole.named_parameters()) {
    std::set<int> of_parameter;
    for (size_t link = 0; link < links.size(); ++link) {
      if (is_of(item.key(), links[link])) of_parameter.insert(ranks[link]);
    }
    TESSERA_INVARIANT(!of_parameter.empty());
    holders[item.key()] = {of_parameter.begin(), of_parameter.end()};
  }
  return holders;
}

void keep_stages_of(int rank, Network& network, const StageBounds& stages) {
  const Links links = network.links();
  const std::vector<int> ranks = ranks_of_links(stages);
  std::set<std::string> kept, all;
  for (size_t link = 0; link < links.size(); ++link) {
    all.insert(links[link].begin(), links[link].end());
    if (ranks[link] == rank) kept.insert(links[link].begin(), links[link].end());
  }
  for (const std::string& path : all) {
    if (kept.contains(path)) continue;
    const auto [parent, name] = nn::parent_of(network, path);
    parent->unregister_module(name);
  }
}

ModelCensus census_of_stages(const Model& model, const std::string& class_name, const std::string& where,
                             int tensor_ranks, const StageBounds& stages) {
  ModelCensus whole = census_of(model, class_name, where, tensor_ranks), most;
  const std::set<int> ranks(stages.rank_of_stage.begin(), stages.rank_of_stage.end());
  for (const int rank : ranks) {
    const auto network = model.network_over(nn::TensorAxis::of_size(tensor_ranks));
    keep_stages_of(rank, *network, stages);
    ModelCensus part = count_parameters(*network);
    if (part.params > most.params) most = std::move(part);
  }
  most.source = std::move(whole.source);
  most.architecture = whole.architecture;
  return most;
}

}  // namespace tessera::models
