#include "tessera/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::plan {
namespace {

using config::Dtype;
using config::Json;

struct Rung {
  int stage;
  OffloadTo optimizer = OffloadTo::kNone;
  OffloadTo params = OffloadTo::kNone;
};

using enum OffloadTo;

// Within a part activation checkpointing comes before the next part. See the header.
std::vector<std::vector<Rung>> parts_of_ladder(const TrainingSetup& wanted, const RankShare& share) {
  std::vector<Rung> near, host, nvme, far;
  if (wanted.ranks == 1) {
    near = {{0}};
  } else {
    near = {{1}, {2}, {3}};
  }
  if (!wanted.on_cpu) {
    near.insert(near.end() - (wanted.ranks == 1 ? 0 : 1), {2, kCpu});
    near.push_back({3, kCpu});
    host = {{3, kCpu, kCpu}};
  }
  if (!share.nvme_path.empty()) {
    nvme = {{2, kNvme}, {3, kNvme}};
    far = {{3, kNvme, kNvme}};
  }
  std::vector<std::vector<Rung>> parts{near};
  for (const auto& part : {host, nvme, far}) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

TrainingSetup at_rung(TrainingSetup setup, const Rung& rung) {
  setup.stage = rung.stage;
  setup.optimizer = rung.optimizer;
  setup.params = rung.params;
  setup.optimizer_ratio = 1;                       // all of what is offloaded: the most sparing
  if (rung.params == kNvme) setup.max_in_cpu = 0;  // …
  if (rung.stage == 3) setup.max_live_parameters = 0;
  return setup;
}

// As zero/policy.h has mixed precision: master weights and state in fp32.
config::Dtypes mixed_bf16(config::Dtypes dtypes) {
  dtypes.compute = dtypes.grad = dtypes.reduce = Dtype::kBf16;
  dtypes.master = dtypes.state = Dtype::kFp32;
  return dtypes;
}

bool is_fp32(const TrainingSetup& setup) { return setup.dtypes.compute == Dtype::kFp32 && !setup.dtypes.autocast; }

// Stage 3 with as many parameters whole as asked for, with room to gather a block ahead of the one in use, and with
// none but those in use.
std::vector<TrainingSetup> with_fewer_whole(const PlanInput& input, TrainingSetup setup) {
  if (setup.stage < 3) return {setup};
  std::vector<TrainingSetup> all;
  for (const int64_t live : {input.wanted.max_live_parameters, 3 * input.model.largest_block().numel, int64_t{0}}) {
    setup.max_live_parameters = std::min(live, input.wanted.max_live_parameters);
    all.push_back(setup);
  }
  return all;
}

int64_t next_smaller_divisor(int64_t of, int64_t than) {
  int64_t divisor = than - 1;
  while (divisor > 1 && of % divisor != 0) --divisor;
  return divisor;
}

// All that may be tried, the fastest first.
std::vector<TrainingSetup> candidates(const PlanInput& input) {
  std::vector<TrainingSetup> all;
  for (int64_t micro = input.wanted.micro_batch; micro > 0;
       micro = next_smaller_divisor(input.samples_of_a_rank, micro)) {
    TrainingSetup batch = input.wanted;
    batch.micro_batch = micro;
    std::vector<TrainingSetup> precisions{batch};
    if (is_fp32(batch)) {
      precisions.push_back(batch);
      precisions.back().dtypes = mixed_bf16(batch.dtypes);
    }
    for (const std::vector<Rung>& part : parts_of_ladder(input.wanted, input.share)) {
      for (const bool checkpointing : {input.wanted.activation_checkpointing, true}) {
        for (TrainingSetup setup : precisions) {
          setup.activation_checkpointing = checkpointing;
          for (const Rung& rung : part) all.push_back(at_rung(setup, rung));
        }
        if (checkpointing) break;
      }
    }
    if (micro == 1) break;
  }
  return all;
}

// "3.10 GB", and on an accelerator "3.10 GB and 12.0 GB of host memory".
std::string amount(const MemoryNeed& need, bool on_cpu) {
  std::string text = format_bytes(need.bytes(Place::kDevice));
  if (!on_cpu) text += fmt::format(" and {} of host memory", format_bytes(need.bytes(Place::kHost)));
  if (need.bytes(Place::kNvme) > 0) text += fmt::format(" and {} of disk", format_bytes(need.bytes(Place::kNvme)));
  return text;
}

std::vector<Reason> explain(const PlanInput& input, const TrainingSetup& chosen, const MemoryNeed& need) {
  const bool on_cpu = chosen.on_cpu;
  const auto other = [&](TrainingSetup setup) { return amount(memory_need(input.model, setup), on_cpu); };
  std::vector<Reason> reasons;

  std::string stage =
      fmt::format("a rank needs {} of the {} available to it", amount(need, on_cpu), format_bytes(input.share.device));
  std::optional<TrainingSetup> faster;
  for (const TrainingSetup& rung : ladder(chosen, input.share)) {
    if (rung.stage == chosen.stage && rung.optimizer == chosen.optimizer && rung.params == chosen.params) break;
    faster = rung;
  }
  stage += faster ? fmt::format("; {}, which is faster, would need {}", describe(*faster), other(*faster))
                  : "; no configuration shards or offloads less";
  reasons.push_back({"zero_optimization.stage", stage});

  if (is_fp32(input.wanted) && !is_fp32(chosen)) {
    TrainingSetup fp32 = chosen;
    fp32.dtypes = input.wanted.dtypes;
    reasons.push_back({"bf16.enabled", fmt::format("fp32 would need {}", other(fp32))});
  } else if (chosen.dtypes.compute == Dtype::kBf16) {
    reasons.push_back({"bf16.enabled", "16 bytes per parameter as in fp32, but half the activations and messages"});
  }
  if (chosen.micro_batch < input.wanted.micro_batch) {
    TrainingSetup larger = chosen;
    larger.micro_batch = input.wanted.micro_batch;
    reasons.push_back(
        {"train_micro_batch_size_per_gpu",
         fmt::format("{} would need {}; gradient accumulation makes up the rest", larger.micro_batch, other(larger))});
  } else {
    reasons.push_back({"train_micro_batch_size_per_gpu", "as requested"});
  }
  if (chosen.optimizer != kNone) {
    reasons.push_back({"zero_optimization.offload_optimizer.device",
                       chosen.optimizer == kCpu ? "preferred to NVMe, which is slower" : "it does not fit in memory"});
  }
  if (chosen.stage == 3 && chosen.max_live_parameters < input.wanted.max_live_parameters) {
    TrainingSetup keeps = chosen;
    keeps.max_live_parameters = input.wanted.max_live_parameters;
    reasons.push_back({"zero_optimization.stage3_max_live_parameters",
                       fmt::format("{} would need {}; parameters are gathered again in backward",
                                   keeps.max_live_parameters, other(keeps))});
  }
  if (chosen.params != kNone) {
    reasons.push_back(
        {"zero_optimization.offload_param.device", "the shards themselves do not fit alongside the rest"});
  }
  if (chosen.activation_checkpointing && !input.wanted.activation_checkpointing) {
    TrainingSetup whole = chosen;
    whole.activation_checkpointing = false;
    reasons.push_back({"", fmt::format("set training.activation_checkpointing: true in the run file; without it a "
                                       "rank would need {}",
                                       other(whole))});
  }
  return reasons;
}

std::optional<Plan> choose_for_part(const PlanInput& input) {
  for (const TrainingSetup& candidate : candidates(input)) {
    if (!input.refusal(candidate).empty()) continue;
    for (const TrainingSetup& setup : with_fewer_whole(input, candidate)) {
      MemoryNeed need = memory_need(input.model, setup);
      if (fit_of(need, input.share, setup.on_cpu) != Fit::kYes) continue;
      std::vector<Reason> reasons = explain(input, setup, need);
      return Plan{.setup = setup, .sharing = {}, .need = std::move(need), .reasons = std::move(reasons)};
    }
  }
  return std::nullopt;
}

struct SharedPlan {
  Plan plan;
  StepCost cost;
};

// Nothing where it does not fit, or the model cannot be shared so.
std::optional<SharedPlan> plan_shared(const PlanInput& input, const Sharing& sharing) {
  try {
    const ModelCensus part = input.part_of(sharing);
    const int64_t samples = input.samples_of_a_rank * sharing.ranks();
    RankShare memory = input.share;
    memory.nvme_path.clear();
    std::optional<Plan> plan = choose_for_part({.model = part,
                                                .wanted = shared(input.wanted, sharing),
                                                .samples_of_a_rank = samples,
                                                .share = memory,
                                                .refusal = input.refusal});
    if (!plan) return std::nullopt;
    plan->sharing = sharing;
    const StepCost cost = step_cost(input.model, part, plan->setup, sharing, input.cluster, samples);
    return SharedPlan{*std::move(plan), cost};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kConfig) throw;
    return std::nullopt;
  }
}

std::string in_words(const StepCost& cost) {
  const auto bytes = [](double number) { return format_bytes(static_cast<uint64_t>(number)); };
  std::string text = fmt::format("sends {} a step within its host", bytes(cost.bytes_in_host));
  if (cost.bytes_between > 0) text += fmt::format(" and {} to others", bytes(cost.bytes_between));
  if (cost.idle_share > 0) text += fmt::format(", and idles {:.0f} % of it", 100 * cost.idle_share);
  return text;
}

// The cheapest way to share the model that fits.
std::optional<Plan> choose_shared(const PlanInput& input) {
  if (!input.part_of || !input.model.architecture) return std::nullopt;
  std::vector<SharedPlan> fitting;
  for (const Sharing& sharing : ways_to_share(input.cluster)) {
    if (auto plan = plan_shared(input, sharing)) fitting.push_back(*std::move(plan));
  }
  if (fitting.empty()) return std::nullopt;
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const SharedPlan& a, const SharedPlan& b) { return a.cost.total < b.cost.total; });
  PlanInput in_memory = input;
  in_memory.share.nvme_path.clear();
  const TrainingSetup sparing = candidates(in_memory).back();
  const Plan& chosen = fitting.front().plan;
  std::string weighed = fmt::format("a rank {}", in_words(fitting.front().cost));
  if (fitting.size() > 1) {
    weighed += fmt::format("; next of the {} ways that fit is {}: a rank {}", fitting.size(),
                           describe(fitting[1].plan.sharing), in_words(fitting[1].cost));
  }
  std::vector<Reason> reasons{
      {"", fmt::format("set {} in the run file; data-parallel ranks alone would need {} at the least, by {}",
                       describe(chosen.sharing), amount(memory_need(input.model, sparing), sparing.on_cpu),
                       describe(sparing))},
      {"", weighed}};
  reasons.insert(reasons.end(), chosen.reasons.begin(), chosen.reasons.end());
  Plan plan = chosen;
  plan.reasons = std::move(reasons);
  return plan;
}

void print_object(const Json& object, const std::string& path, int depth, const std::vector<Reason>& reasons,
                  std::string& text) {
  const std::string indent(2 * static_cast<size_t>(depth + 1), ' ');
  text += "{\n";
  for (auto item = object.begin(); item != object.end(); ++item) {
    const std::string key = path + item.key();
    const auto reason = std::find_if(reasons.begin(), reasons.end(), [&](const Reason& r) { return r.key == key; });
    if (reason != reasons.end()) text += fmt::format("{}// {}\n", indent, reason->text);
    text += fmt::format("{}{}: ", indent, Json(item.key()).dump());
    if (item->is_object() && !item->empty()) {
      print_object(*item, key + ".", depth + 1, reasons, text);
    } else {
      text += item->dump();
    }
    text += std::next(item) == object.end() ? "\n" : ",\n";
  }
  text += std::string(2 * static_cast<size_t>(depth), ' ') + "}";
}

}  // namespace

Fit fit_of(const MemoryNeed& need, const RankShare& share, bool on_cpu) {
  constexpr double kSpare = 0.1;
  Fit fit = Fit::kYes;
  const auto compare = [&](Place place, int64_t limit) {
    const auto bytes = static_cast<double>(need.bytes(place));
    const auto room = static_cast<double>(limit);
    if (bytes > room) {
      fit = Fit::kNo;
    } else if (bytes * (1 + kSpare) > room && bytes > 0 && fit == Fit::kYes) {
      fit = Fit::kTight;
    }
  };
  compare(Place::kDevice, share.device);
  if (!on_cpu) compare(Place::kHost, share.host);
  compare(Place::kNvme, share.nvme);
  return fit;
}

const char* name_of(Fit fit) { return fit == Fit::kYes ? "yes" : fit == Fit::kTight ? "tight" : "no"; }

std::string describe(const TrainingSetup& setup) {
  std::string text = fmt::format("stage {}", setup.stage);
  if (setup.optimizer != kNone && setup.optimizer == setup.params) {
    return text + fmt::format(", optimizer and parameters on {}", name_of(setup.optimizer));
  }
  if (setup.optimizer != kNone) text += fmt::format(", optimizer on {}", name_of(setup.optimizer));
  if (setup.params != kNone) text += fmt::format(", parameters on {}", name_of(setup.params));
  return text;
}

std::vector<TrainingSetup> ladder(const TrainingSetup& wanted, const RankShare& share) {
  std::vector<TrainingSetup> all;
  for (const std::vector<Rung>& part : parts_of_ladder(wanted, share)) {
    for (const Rung& rung : part) all.push_back(at_rung(wanted, rung));
  }
  return all;
}

std::optional<Plan> choose_plan(const PlanInput& input) {
  std::optional<Plan> alone = choose_for_part(input);
  if (alone && alone->need.bytes(Place::kNvme) == 0) return alone;
  std::optional<Plan> sharing = choose_shared(input);
  return sharing ? sharing : alone;
}

std::string refusal_of_this_version(const TrainingSetup& setup) {
  const Json json = ds_config_of(setup, setup.micro_batch * setup.ranks, {.nvme_path = "."});
  const config::DsConfig parsed = config::parse_ds_config(json, "the plan", {.data_parallel_size = setup.ranks});
  const std::vector<config::NotYet> missing = config::not_yet_supported(parsed);
  return missing.empty() ? "" : missing.front().what;
}

Json ds_config_of(const TrainingSetup& setup, int64_t global_batch, const RankShare& share, const Json& base) {
  Json result = base;
  if (base.is_null()) result = {{"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 5e-5}}}}}};
  result["train_batch_size"] = global_batch;
  result["train_micro_batch_size_per_gpu"] = setup.micro_batch;
  result.erase("gradient_accumulation_steps");  // follows from the two
  if (setup.dtypes.compute == Dtype::kBf16) {
    result.erase("bfloat16");
    result["bf16"]["enabled"] = true;
  }
  Json& zero = result["zero_optimization"];
  if (!zero.is_object()) zero = Json::object();
  for (const char* old : {"cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"}) zero.erase(old);
  zero["stage"] = setup.stage;
  const auto place = [&](const char* key, OffloadTo offload) {
    if (offload == kNone) {
      zero.erase(key);
      return;
    }
    if (!zero.contains(key) || !zero[key].is_object()) zero[key] = Json::object();
    zero[key]["device"] = name_of(offload);
    if (offload == kNvme) zero[key]["nvme_path"] = share.nvme_path;
  };
  if (setup.stage == 3 && setup.max_live_parameters != TrainingSetup().max_live_parameters) {
    zero.erase("max_live_parameters");  // its other name
    zero["stage3_max_live_parameters"] = setup.max_live_parameters;
  }
  place("offload_optimizer", setup.optimizer);
  place("offload_param", setup.params);
  if (setup.optimizer != kNone) zero["offload_optimizer"]["ratio"] = setup.optimizer_ratio;
  if (setup.params == kNvme) zero["offload_param"]["max_in_cpu"] = setup.max_in_cpu;
  return result;
}

std::string print_with_reasons(const Json& ds_config, const std::vector<Reason>& reasons) {
  std::string text;
  for (const Reason& reason : reasons) {
    if (reason.key.empty()) text += fmt::format("// {}\n", reason.text);
  }
  print_object(ds_config, "", 0, reasons, text);
  return text + "\n";
}

}  // namespace tessera::plan
