#include "tessera/config/auto_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "tessera/config/fill_auto.h"
#include "tessera/config/key_check.h"
#include "tessera/config/key_table.h"

namespace tessera::config {
namespace {

struct Filled {
  Json value;       // null: not known
  std::string why;  // "hidden_size^2"
};

template <class T>
Filled known_or(const std::optional<T>& known, T otherwise, const char* name) {
  return known ? Filled{*known, name} : Filled{otherwise, "filled in as DeepSpeed's clients do"};
}

double learning_rate(const std::vector<ResolvedKey>& keys, const AutoValues& known) {
  for (const ResolvedKey& key : keys) {
    if (key.path == "optimizer.params.lr" && key.value.is_number()) return key.value.get<double>();
  }
  return known.learning_rate.value_or(5e-5);
}

using Keys = std::vector<ResolvedKey>;

Filled total_num_steps(const AutoValues& known, const Keys&) {
  if (known.total_num_steps) return {*known.total_num_steps, "total_num_steps"};
  return known.leave_unknown ? Filled{0, "known when training starts"} : Filled{};
}

struct Rule {
  std::string_view path;
  Filled (*fill)(const AutoValues& known, const Keys& keys);
};

// One row a key of which a client of DeepSpeed fills in the "auto"; an empty answer means the key's default.
const Rule kRules[] = {
    {"gradient_clipping",
     [](const AutoValues& k, const Keys&) { return known_or(k.gradient_clipping, 1.0, "gradient_clipping"); }},
    {"optimizer.params.lr",
     [](const AutoValues& k, const Keys&) { return known_or(k.learning_rate, 5e-5, "learning_rate"); }},
    {"optimizer.params.betas",
     [](const AutoValues& k, const Keys&) {
       return known_or(k.betas, std::array<double, 2>{0.9, 0.999}, "betas");
     }},
    {"optimizer.params.eps", [](const AutoValues& k, const Keys&) { return known_or(k.eps, 1e-8, "eps"); }},
    {"optimizer.params.weight_decay",
     [](const AutoValues& k, const Keys&) { return known_or(k.weight_decay, 0.0, "weight_decay"); }},
    {"scheduler.params.warmup_min_lr",
     [](const AutoValues&, const Keys&) {
       return Filled{0.0, "0"};
     }},
    {"scheduler.params.warmup_max_lr",
     [](const AutoValues& k, const Keys& keys) {
       return Filled{learning_rate(keys, k), "the learning rate"};
     }},
    {"scheduler.params.warmup_num_steps",
     [](const AutoValues& k, const Keys&) { return known_or<int64_t>(k.warmup_num_steps, 1, "warmup_num_steps"); }},
    {"scheduler.params.total_num_steps", total_num_steps},
    {"scheduler.params.num_warmup_steps",
     [](const AutoValues& k, const Keys&) { return known_or<int64_t>(k.warmup_num_steps, 0, "warmup_num_steps"); }},
    {"scheduler.params.num_training_steps", total_num_steps},
    {"fp16.enabled", [](const AutoValues& k, const Keys&) { return known_or(k.fp16_enabled, false, "fp16_enabled"); }},
    {"bf16.enabled", [](const AutoValues& k, const Keys&) { return known_or(k.bf16_enabled, false, "bf16_enabled"); }},
    {"zero_optimization.reduce_bucket_size",
     [](const AutoValues& k, const Keys&) {
       return k.hidden_size ? Filled{*k.hidden_size * *k.hidden_size, "hidden_size^2"} : Filled{};
     }},
    {"zero_optimization.stage3_prefetch_bucket_size",
     [](const AutoValues& k, const Keys&) {
       // The product in floating point and then cut off, as Hugging Face computes it.
       if (!k.hidden_size) return Filled{};
       return Filled{static_cast<int64_t>(0.9 * *k.hidden_size * *k.hidden_size), "0.9 hidden_size^2"};
     }},
    {"zero_optimization.stage3_param_persistence_threshold",
     [](const AutoValues& k, const Keys&) {
       return k.hidden_size ? Filled{10 * *k.hidden_size, "10 hidden_size"} : Filled{};
     }},
};

// Blocks in which DeepSpeed drops every "auto" before it validates, so that the default counts.
constexpr std::string_view kAutoIsDefault[] = {
    "zero_optimization", "fp16",          "bf16",    "tensorboard", "wandb", "csv_monitor", "comet", "comms_logger",
    "tensor_parallel",   "hybrid_engine", "compile", "timers"};

constexpr std::string_view kBatchKeys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                           "gradient_accumulation_steps"};

const Rule* find_rule(std::string_view path) {
  const auto found =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const Rule& rule) { return rule.path == path; });
  return found == std::end(kRules) ? nullptr : found;
}

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool defaults_on_auto(std::string_view path) {
  const size_t dot = path.find('.');
  return dot != std::string_view::npos && path != "zero_optimization.stage" &&
         contains(kAutoIsDefault, path.substr(0, dot));
}

Json default_of_path(std::string_view path) {
  for (const Key& key : ds_config_keys()) {
    if (key.path == path) return default_of(key);
  }
  return {};
}

}  // namespace

bool accepts_auto(std::string_view path) {
  return find_rule(path) != nullptr || contains(kBatchKeys, path) || defaults_on_auto(path);
}

void fill_auto(std::vector<ResolvedKey>& keys, const AutoValues& known, const Document& document, Problems& problems) {
  for (ResolvedKey& key : keys) {
    if (key.value != "auto" || !accepts_auto(key.path) || contains(kBatchKeys, key.path)) continue;
    if (!key.given) continue;  // a default that happens to read "auto"
    const Rule* rule = find_rule(key.path);
    Filled filled = rule != nullptr ? rule->fill(known, keys) : Filled{};
    if (filled.value.is_null() && defaults_on_auto(key.path)) filled = {default_of_path(key.path), "its default"};
    if (filled.why.empty()) {
      problems.add(fmt::format("'{}' is \"auto\", but its value is not known here", key.path),
                   document.place(pointer_to(key.path)), "write a value");
      continue;
    }
    key.value = filled.value;
    key.origin = fmt::format("auto at {} -> {}", key.where, filled.why);
  }
}

}  // namespace tessera::config
