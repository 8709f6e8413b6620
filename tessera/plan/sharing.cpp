#include "tessera/plan/sharing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/layout/range.h"
#include "tessera/models/flops.h"
#include "tessera/nn/context_axis.h"

namespace tessera::plan {
namespace {

// Of what a ring of so many ranks adds up, the share that each sends on in half an all-reduce.
double ring_share(int64_t ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); }

// What a rank sends of each of its tokens in a layer, bytes; of the way that sends least.
double attention_bytes(const Architecture& whole, const Sharing& sharing, const TrainingSetup& setup) {
  const bool ring = setup.on_cpu && whole.attention_dropout == 0;  // nn/ring_attention.h
  const nn::SharedHeads heads{.heads = whole.heads,
                              .key_heads = whole.kv_heads,
                              .tensor_ranks = static_cast<int>(sharing.tensor),
                              .context_ranks = static_cast<int>(sharing.context),
                              .element_size = bytes_of(setup.dtypes.compute),
                              .why_no_ring = ring ? "" : "as in a run"};
  const nn::ContextAttention way = nn::context_attention_of(heads, std::nullopt, "parallel.context");
  return nn::bytes_sent_for_token(way, heads) * static_cast<double>(whole.head_size);
}

}  // namespace

std::vector<Sharing> ways_to_share(const Cluster& cluster) {
  std::vector<Sharing> all;
  for (int64_t tensor = 1; tensor <= cluster.ranks_of_host; ++tensor) {
    if (cluster.ranks_of_host % tensor != 0) continue;
    for (int64_t context = 1; tensor * context <= cluster.ranks_of_host; ++context) {
      if (cluster.ranks_of_host % (tensor * context) != 0) continue;
      const int64_t left = cluster.ranks() / (tensor * context);
      for (int64_t pipeline = 1; pipeline <= left; ++pipeline) {
        if (left % pipeline == 0) all.push_back({.tensor = tensor, .context = context, .pipeline = pipeline});
      }
    }
  }
  std::erase_if(all, [](const Sharing& sharing) { return sharing.ranks() == 1; });
  std::stable_sort(all.begin(), all.end(), [](const Sharing& a, const Sharing& b) { return a.ranks() < b.ranks(); });
  return all;
}

std::string describe(const Sharing& sharing) {
  std::vector<std::string> parts;
  const auto add = [&](const char* axis, int64_t ranks) {
    if (ranks > 1) parts.push_back(fmt::format("parallel.{}: {}", axis, ranks));
  };
  add("pipeline", sharing.pipeline);
  add("context", sharing.context);
  add("tensor", sharing.tensor);
  return fmt::format("{}", fmt::join(parts, " and "));
}

// An encoder-decoder writes as many tokens as it reads: so memory_model.cpp counts them.
double micro_batch_flops(const ModelCensus& model, const TrainingSetup& setup) {
  const Architecture& net = *model.architecture;
  return models::training_flops(model, {.texts = setup.micro_batch,
                                        .length = setup.length,
                                        .written = net.decoder_layers > 0 ? setup.length : 0,
                                        .targets = targets_of(net, setup)});
}

TrainingSetup shared(TrainingSetup setup, const Sharing& sharing) {
  setup.ranks /= sharing.tensor * sharing.pipeline;
  setup.length = layout::ceil_div(setup.length, sharing.context);
  setup.tensor_ranks = sharing.tensor;
  return setup;
}

StepCost step_cost(const ModelCensus& whole, const ModelCensus& part, const TrainingSetup& setup,
                   const Sharing& sharing, const Cluster& cluster, int64_t samples) {
  TESSERA_INVARIANT(whole.architecture.has_value());
  const Architecture& net = *whole.architecture;
  const int64_t micro_batches = layout::ceil_div(samples, setup.micro_batch);
  const auto rank_tokens = static_cast<double>(samples * setup.length);
  const auto element = static_cast<double>(bytes_of(setup.dtypes.compute));
  const double hidden = rank_tokens * static_cast<double>(net.hidden) * element;
  const auto layers = static_cast<double>(net.layers) / static_cast<double>(sharing.pipeline);

  TrainingSetup of_step = setup;
  of_step.micro_batch = samples;
  of_step.length = setup.length * sharing.context;
  StepCost cost;
  cost.arithmetic = micro_batch_flops(whole, of_step) / static_cast<double>(sharing.ranks());
  if (setup.activation_checkpointing) cost.arithmetic *= 4.0 / 3;  // forward again
  cost.idle_share =
      static_cast<double>(sharing.pipeline - 1) / static_cast<double>(micro_batches + sharing.pipeline - 1);

  cost.bytes_in_host = 2 * (2 * layers + 1) * 2 * ring_share(sharing.tensor) * hidden;
  if (sharing.context > 1) {
    cost.bytes_in_host += layers * rank_tokens * attention_bytes(net, sharing, setup);
  }
  const auto add = [&](double bytes, bool within) { (within ? cost.bytes_in_host : cost.bytes_between) += bytes; };
  // Pipelines are the outermost axis, and what ZeRO shards over is next to it.
  if (sharing.pipeline > 1) add(2 * hidden, cluster.hosts == 1);
  const int64_t of_model = cluster.ranks() / sharing.pipeline;
  const double passes = setup.stage == 3 ? 3.0 * static_cast<double>(micro_batches) : 2;
  add(passes * ring_share(setup.ranks) * static_cast<double>(part.params) * element, of_model <= cluster.ranks_of_host);

  const OperationsOfByte& each = setup.on_cpu ? kOfCpu : kOfDevice;
  cost.total = cost.arithmetic / (1 - cost.idle_share) + cost.bytes_in_host * each.in_host +
               cost.bytes_between * each.between_hosts;
  return cost;
}

}  // namespace tessera::plan
