#include "tessera/config/ds_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/config/fill_auto.h"
#include "tessera/config/hjson.h"
#include "tessera/config/key_check.h"
#include "tessera/config/yaml_file.h"

namespace tessera::config {
namespace {

constexpr int64_t kPageBytes = 4096;

// Old forms that are more than another name
// ----------------------------------------------------------------------------

// "zero_optimization": true means stage 1.
void rewrite_zero_as_bool(Document& document, KeyCheck& check) {
  const Pointer zero = pointer_to("zero_optimization");
  if (!document.value.contains(zero) || !document.value.at(zero).is_boolean()) return;
  const int stage = document.value.at(zero).get<bool>() ? 1 : 0;
  const Place place = document.place(zero);
  check.warnings.push_back(fmt::format(
      "{}: true or false for 'zero_optimization' is an old form; write {{\"stage\": {}}}", place.text(), stage));
  document.set(zero, {{"stage", stage}}, place);
}

// "cpu_offload": true means "offload_optimizer": {"device": "cpu"}.
void rewrite_cpu_offload(Document& document, KeyCheck& check, const std::string& old_path,
                         const std::string& new_path) {
  const Pointer from = pointer_to(old_path), to = pointer_to(new_path);
  if (!document.value.contains(from) || !document.value.at(from).is_boolean()) return;
  if (document.value.contains(to)) return;  // both given: rename_aliases reports it
  const Place place = document.place(from);
  const bool on = document.value.at(from).get<bool>();
  document.erase(from);
  check.warnings.push_back(fmt::format("{}: '{}' is an old form; write '{}': {{\"device\": \"{}\"}}", place.text(),
                                       old_path, new_path, on ? "cpu" : "none"));
  if (on) document.set(to / "device", "cpu", place);
}

void rewrite_old_forms(Document& document, KeyCheck& check) {
  rewrite_zero_as_bool(document, check);
  rewrite_cpu_offload(document, check, "zero_optimization.cpu_offload", "zero_optimization.offload_optimizer");
  rewrite_cpu_offload(document, check, "zero_optimization.cpu_offload_param", "zero_optimization.offload_param");
  // A block without "params" takes the defaults of all of them; the required ones are then reported by name.
  for (const char* block : {"optimizer", "scheduler"}) {
    const Pointer at = pointer_to(block);
    if (!document.value.contains(at) || !document.value.at(at).is_object()) continue;
    if (!document.value.contains(at / "params") || document.value.at(at / "params").is_null()) {
      document.set(at / "params", Json::object(), document.place(at));
    }
  }
}

// From rows to fields
// ----------------------------------------------------------------------------------------------------

ResolvedKey& row_of(DsConfig& config, std::string_view path) {
  const auto found =
      std::find_if(config.keys.begin(), config.keys.end(), [&](const auto& key) { return key.path == path; });
  TESSERA_INVARIANT(found != config.keys.end());
  return *found;
}

// DeepSpeed's three batch keys: "auto" where the door knows nothing counts as not given.
void resolve_batch(DsConfig& config, const DsConfigInput& input) {
  ResolvedKey& global = row_of(config, "train_batch_size");
  ResolvedKey& micro = row_of(config, "train_micro_batch_size_per_gpu");
  ResolvedKey& accumulation = row_of(config, "gradient_accumulation_steps");
  const auto number = [](const ResolvedKey& key, std::optional<int64_t> known) -> std::optional<int64_t> {
    if (key.value == "auto") return known;
    return key.value.is_null() ? std::nullopt : std::optional(key.value.get<int64_t>());
  };
  std::optional<int64_t> micro_value = number(micro, input.auto_values.micro_batch);
  const std::optional<int64_t> global_value = number(global, std::nullopt);
  if (!micro_value && !global_value && (micro.given || global.given)) micro_value = 1;
  const std::string where = global.given ? global.where : micro.given ? micro.where : config.name;
  config.batch = resolve_batch_sizes({.global = global_value,
                                      .micro = micro_value,
                                      .accumulation = number(accumulation, input.auto_values.accumulation),
                                      .data_parallel_size = input.data_parallel_size,
                                      .may_lower_micro = input.may_lower_micro_batch},
                                     where);
  if (global_value && micro_value && config.batch.micro != *micro_value) {
    config.warnings.push_back(fmt::format(
        "{}: train_batch_size {} on {} leaves {} samples per rank: the micro batch is {} instead "
        "of {}, "
        "with {} accumulation steps; the training is the same",
        micro.given ? micro.where : where, *global_value, count_of(input.data_parallel_size, "data-parallel rank"),
        *global_value / input.data_parallel_size, config.batch.micro, *micro_value, config.batch.accumulation));
    micro.origin = fmt::format("{} at {}, lowered for {}", *micro_value, micro.where,
                               count_of(input.data_parallel_size, "data-parallel rank"));
    micro.value = config.batch.micro;
  }

  const auto fill = [&](ResolvedKey& key, int64_t value, const std::string& formula) {
    if (key.given && key.value != "auto") return;
    key.origin = key.given ? fmt::format("auto at {} -> {}", key.where, formula) : formula;
    key.value = value;
  };
  fill(global, config.batch.global,
       fmt::format("micro {} x accumulation {} x {} data-parallel ranks", config.batch.micro, config.batch.accumulation,
                   input.data_parallel_size));
  fill(micro, config.batch.micro, "from the batch keys");
  fill(accumulation, config.batch.accumulation, "from the batch keys");
}

// Spellings of a dtype in data_types and communication_data_type.
std::string short_dtype(std::string name) {
  if (name.rfind("torch.", 0) == 0) name.erase(0, 6);
  if (name == "float32" || name == "float") return "fp32";
  if (name == "bfloat16") return "bf16";
  if (name == "float16" || name == "half") return "fp16";
  return name;
}

const char* name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
      return "fp32";
    case Dtype::kBf16:
      return "bf16";
    case Dtype::kFp16:
      return "fp16";
  }
  return "";
}

// Of a key whose value may be null; int8 and the like have been refused by then.
std::optional<Dtype> dtype_of(const Json& value) {
  if (value.is_null()) return std::nullopt;
  const std::string name = short_dtype(value.get<std::string>());
  if (name == "bf16") return Dtype::kBf16;
  if (name == "fp16") return Dtype::kFp16;
  return Dtype::kFp32;
}

OffloadOptions offload_of(const DsConfig& config, const std::string& block) {
  const Json& path = config.value(block + ".nvme_path");
  return {.device = config.value(block + ".device").get<std::string>(),
          .nvme_path = path.is_null() ? "" : path.get<std::string>(),
          .pin_memory = config.value(block + ".pin_memory").get<bool>(),
          .buffer_count = config.value(block + ".buffer_count").get<int64_t>()};
}

ZeroOptions zero_of(const DsConfig& config) {
  const auto elements = [&](const char* key) {
    return config.value(std::string("zero_optimization.") + key).get<int64_t>();
  };
  OffloadOptions optimizer = offload_of(config, "zero_optimization.offload_optimizer");
  optimizer.ratio = config.value("zero_optimization.offload_optimizer.ratio").get<double>();
  optimizer.pipeline_read = config.value("zero_optimization.offload_optimizer.pipeline_read").get<bool>();
  optimizer.pipeline_write = config.value("zero_optimization.offload_optimizer.pipeline_write").get<bool>();
  OffloadOptions param = offload_of(config, "zero_optimization.offload_param");
  param.max_in_cpu = elements("offload_param.max_in_cpu");
  const auto is_on = [&](const char* key) { return config.value(std::string("zero_optimization.") + key).get<bool>(); };
  const Json& overlap = config.value("zero_optimization.overlap_comm");
  return {.stage = config.value("zero_optimization.stage").get<int>(),
          .offload_optimizer = std::move(optimizer),
          .offload_param = std::move(param),
          .reduction = {.overlap_comm = overlap.is_null() || overlap.get<bool>(),
                        .reduce_scatter = is_on("reduce_scatter"),
                        .reduce_bucket_size = elements("reduce_bucket_size")},
          .residency = {.max_live_parameters = elements("stage3_max_live_parameters"),
                        .prefetch_bucket_size = elements("stage3_prefetch_bucket_size"),
                        .max_reuse_distance = elements("stage3_max_reuse_distance"),
                        .param_persistence_threshold = elements("stage3_param_persistence_threshold"),
                        .model_persistence_threshold = elements("stage3_model_persistence_threshold")},
          .traffic = {.zero_hpz_partition_size = elements("zero_hpz_partition_size"),
                      .quantized_weights = is_on("zero_quantized_weights"),
                      .quantized_gradients = is_on("zero_quantized_gradients")},
          .sub_group_size = elements("sub_group_size"),
          .ignore_unused_parameters = is_on("ignore_unused_parameters")};
}

// The keys under `prefix`, as one object.
Json params_of(const DsConfig& config, const std::string& prefix) {
  Json params = Json::object();
  for (const ResolvedKey& key : config.keys) {
    if (key.path.rfind(prefix, 0) == 0) params[key.path.substr(prefix.size())] = key.value;
  }
  return params;
}

ActivationCheckpointing activation_checkpointing_of(const DsConfig& config) {
  const auto is_on = [&](const char* key) {
    return config.value(std::string("activation_checkpointing.") + key).get<bool>();
  };
  const Json& number = config.value("activation_checkpointing.number_checkpoints");
  const Json& folder = config.value("activation_checkpointing.nvme_path");
  return {.cpu_checkpointing = is_on("cpu_checkpointing"),
          .contiguous_memory_optimization = is_on("contiguous_memory_optimization"),
          .number_checkpoints = number.is_null() ? 0 : number.get<int64_t>(),
          .nvme_path = folder.is_null() ? "" : folder.get<std::string>(),
          .profile = is_on("profile")};
}

OwnOptions own_of(const DsConfig& config) {
  const Json& limit = config.value("tessera.host_memory_limit");
  const Json& lazy = config.value("tessera.lazy_publish");
  return {.delayed_update = config.value("tessera.delayed_update").get<bool>(),
          .delayed_update_after = config.value("tessera.delayed_update_after").get<int64_t>(),
          .lazy_publish = lazy.is_null() ? std::nullopt : std::optional(lazy.get<bool>()),
          .host_memory_limit = limit.is_null() ? 0 : limit.get<int64_t>()};
}

AioOptions aio_of(const DsConfig& config) {
  return {.block_bytes = config.value("aio.block_size").get<int64_t>(),
          .queue_depth = config.value("aio.queue_depth").get<int>(),
          .intra_op_parallelism = config.value("aio.intra_op_parallelism").get<int>(),
          .single_submit = config.value("aio.single_submit").get<bool>(),
          .overlap_events = config.value("aio.overlap_events").get<bool>()};
}

OptimizerOptions optimizer_of(const DsConfig& config, const Document& document) {
  OptimizerOptions options{.type = config.value("optimizer.type").get<std::string>(),
                           .params = params_of(config, "optimizer.params."),
                           .where = document.place(pointer_to("optimizer.type")).text()};
  const auto read = [&](const char* key, double& field) {
    const auto found = options.params.find(key);
    if (found != options.params.end() && found->is_number()) field = found->get<double>();
  };
  read("lr", options.lr);
  read("eps", options.eps);
  read("weight_decay", options.weight_decay);
  read("momentum", options.momentum);
  if (options.type == "AdamW") options.params["adam_w_mode"] = true;  // whatever is written
  if (const auto betas = options.params.find("betas"); betas != options.params.end()) {
    options.beta1 = betas->at(0).get<double>();
    options.beta2 = betas->at(1).get<double>();
  }
  return options;
}

SchedulerOptions scheduler_of(const DsConfig& config, const Document& document) {
  return {config.value("scheduler.type").get<std::string>(), params_of(config, "scheduler.params."),
          document.place(pointer_to("scheduler.type")).text()};
}

Dtype compute_dtype_of(const DsConfig& config) {
  if (config.value("bf16.enabled") == true) return Dtype::kBf16;
  return config.value("fp16.enabled") == true ? Dtype::kFp16 : Dtype::kFp32;
}

// Null where autocast is off.
std::optional<Dtype> autocast_of(const DsConfig& config) {
  if (config.value("torch_autocast.enabled") != true) return std::nullopt;
  return dtype_of(config.value("torch_autocast.dtype")).value_or(Dtype::kBf16);
}

template <class PlaceOf>
void check_precision(const DsConfig& config, const PlaceOf& place, Problems& problems) {
  const Dtype compute = compute_dtype_of(config);
  for (const std::string key :
       {"data_types.grad_accum_dtype", "data_types.param_dtype", "data_types.buffer_dtype", "torch_autocast.dtype"}) {
    const Json& value = config.value(key);
    if (!value.is_null() && short_dtype(value.get<std::string>()) == "int8") {
      problems.add(fmt::format("'{}' is int8, which cannot be trained in", key), place(key), "use fp32, bf16 or fp16");
    }
  }
  if (const auto autocast = autocast_of(config); autocast && compute != Dtype::kFp32 && *autocast != compute) {
    problems.add(
        fmt::format("'torch_autocast' runs in {}, but '{}.enabled' is true", name_of(*autocast), name_of(compute)),
        place("torch_autocast.enabled"), fmt::format("keep one, or set torch_autocast.dtype to {}", name_of(compute)));
  }
  const auto param = dtype_of(config.value("data_types.param_dtype"));
  if (param && *param != compute) {
    problems.add(
        fmt::format("'data_types.param_dtype' is {}, but the run computes in {}", name_of(*param), name_of(compute)),
        place("data_types.param_dtype"), "remove it; fp16.enabled and bf16.enabled decide");
  }
  const auto grad = dtype_of(config.value("data_types.grad_accum_dtype"));
  if (grad && *grad != compute && *grad != Dtype::kFp32) {
    problems.add(fmt::format("'data_types.grad_accum_dtype' is {}, but the run computes in {}", name_of(*grad),
                             name_of(compute)),
                 place("data_types.grad_accum_dtype"), fmt::format("use fp32 or {}", name_of(compute)));
  }
  if (config.value("bf16.bf16_optimizer_states") == true &&
      config.value("bf16.bf16_master_weights_and_grads") == false) {
    problems.add("'bf16.bf16_optimizer_states' needs 'bf16.bf16_master_weights_and_grads'",
                 place("bf16.bf16_optimizer_states"), "set both, or neither");
  }
  if (config.value("prescale_gradients") == true && config.value("gradient_predivide_factor") != 1.0) {
    problems.add(
        "'prescale_gradients' does the whole division before the sum, so 'gradient_predivide_factor' has no effect",
        place("gradient_predivide_factor"), "keep one");
  }
}

template <class PlaceOf>
void check_optimizer(const DsConfig& config, const PlaceOf& place, Problems& problems) {
  const Json& type = config.value("optimizer.type");
  const auto check_order = [&](const std::string& low, const std::string& high) {
    const std::string params = "optimizer.params.";
    if (config.value(params + low) <= config.value(params + high)) return;
    problems.add(fmt::format("'{}{}' is above '{}{}'", params, low, params, high), place(params + low), "swap them");
  };
  if (type == "Lamb" || type == "OneBitLamb") check_order("min_coeff", "max_coeff");
  if (type == "OneBitLamb") check_order("factor_min", "factor_max");
  if (type == "SGD" && config.value("optimizer.params.nesterov") == true &&
      (config.value("optimizer.params.momentum") == 0 || config.value("optimizer.params.dampening") != 0)) {
    problems.add("'optimizer.params.nesterov' needs a momentum and no dampening", place("optimizer.params.nesterov"),
                 "set momentum above 0 and dampening to 0");
  }
  const bool compressed = type == "OneBitAdam" || type == "OneBitLamb" || type == "ZeroOneAdam";
  if (compressed && config.value("zero_optimization.stage") > 1) {
    problems.add(
        fmt::format("'optimizer.type' is {}, whose compressed communication works only at stages 0 and 1", type.dump()),
        place("optimizer.type"), "set zero_optimization.stage to 0 or 1, or choose another optimizer");
  }
}

// In Python deepspeed.checkpointing.configure() checks the same, as only programs that call it have such checkpoints.
void check_contiguous_checkpoints(const DsConfig& config, const Document& document, Problems& problems) {
  const std::string block = "activation_checkpointing.", contiguous = block + "contiguous_memory_optimization";
  if (config.value(contiguous) == false || config.door == Door::kPython) return;
  const Place place = document.place(pointer_to(contiguous));
  if (!config.value(block + "nvme_path").is_null()) {
    problems.add(fmt::format("'{}' is true, and '{}nvme_path' is given", contiguous, block), place,
                 "keep one: the inputs are kept either in buffers or in a file");
  }
  if (config.value(block + "partition_activations") == false) {
    problems.add(fmt::format("'{}' is true without '{}partition_activations'", contiguous, block), place,
                 "set partition_activations to true as well, as DeepSpeed requires");
  }
  const Json& number = config.value(block + "number_checkpoints");
  if (number.is_null() || number == 0) {
    problems.add(fmt::format("'{}' is true without '{}number_checkpoints'", contiguous, block), place,
                 "set number_checkpoints to the number of checkpoints in one forward pass, e.g. the number of layers");
  }
}

// ZeRO++ spares the all-gathers and reductions of stage 3, with what stays in memory for it.
template <class PlaceOf>
void check_traffic(const DsConfig& config, const PlaceOf& place, Problems& problems) {
  for (const std::string name : {"zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients"}) {
    const std::string key = "zero_optimization." + name;
    const Json& value = config.value(key);
    if (value == false || value == 0 || value == 1) continue;
    if (config.value("zero_optimization.stage") != 3) {
      problems.add(fmt::format("'{}' is {}, which only stage 3 supports", key, value.dump()), place(key),
                   "remove the key, or set zero_optimization.stage to 3");
    } else if (name != "zero_quantized_gradients" && config.value("zero_optimization.offload_param.device") == "nvme") {
      problems.add(
          fmt::format("'{}' is {}, which keeps in memory what 'offload_param' keeps on NVMe", key, value.dump()),
          place(key), "remove one of the two");
    }
  }
}

// Keys that are right one by one and contradict each other.
void check_together(const DsConfig& config, const Document& document, Problems& problems) {
  const auto place = [&](std::string_view path) { return document.place(pointer_to(path)); };
  if (config.value("fp16.enabled") == true && config.value("bf16.enabled") == true) {
    problems.add("'fp16.enabled' and 'bf16.enabled' are both true", place("fp16.enabled"),
                 fmt::format("keep one; bf16 is enabled at {}", place("bf16.enabled").text()));
  }
  for (const std::string block : {"zero_optimization.offload_optimizer", "zero_optimization.offload_param"}) {
    if (config.value(block + ".device") == "nvme" && config.value(block + ".nvme_path").is_null()) {
      problems.add(fmt::format("'{}.device' is \"nvme\", but 'nvme_path' is missing", block), place(block + ".device"),
                   "add nvme_path: a folder on the drive");
    }
  }
  const double ratio = config.value("zero_optimization.offload_optimizer.ratio").get<double>();
  if (ratio < 1 && config.value("zero_optimization.stage") != 3) {
    problems.add(fmt::format("'zero_optimization.offload_optimizer.ratio' is {}, which only stage 3 supports", ratio),
                 place("zero_optimization.offload_optimizer.ratio"), "use 1.0, or set zero_optimization.stage to 3");
  }
  check_traffic(config, place, problems);
  check_precision(config, place, problems);
  check_optimizer(config, place, problems);
  if (config.value("fp16.enabled") == true && config.value("fp16.loss_scale") == 0) {
    for (const std::string key : {"fp16.loss_scale_window", "fp16.min_loss_scale"}) {
      if (config.value(key) == 0) {
        problems.add(fmt::format("'{}' is 0 with a dynamic loss scale", key), place(key), "use a whole number above 0");
      }
    }
  }
  check_contiguous_checkpoints(config, document, problems);
  if (const int64_t block = config.value("aio.block_size").get<int64_t>(); block % kPageBytes != 0) {
    problems.add(fmt::format("'aio.block_size' is {}, but files are read and written in whole pages", block),
                 place("aio.block_size"),
                 fmt::format("use a multiple of {}, e.g. {}", kPageBytes, (block / kPageBytes + 1) * kPageBytes));
  }
}

void warn_of_offload_without_shards(const DsConfig& config, const Document& document, KeyCheck& check) {
  const Json& stage = config.value("zero_optimization.stage");
  if (stage == 3 || config.value("zero_optimization.offload_param.device") == "none") return;
  check.warnings.push_back(fmt::format(
      "{}: 'zero_optimization.offload_param' has no effect at stage {}: parameters are sharded at stage 3 alone",
      document.place(pointer_to("zero_optimization.offload_param")).text(), stage.dump()));
}

Dtypes dtypes_of(const DsConfig& config) {
  Dtypes dtypes;
  dtypes.compute = compute_dtype_of(config);
  const std::string block = name_of(dtypes.compute);
  const auto is_on = [&](const std::string& key) {
    return dtypes.compute != Dtype::kFp32 && config.value(block + "." + key) == true;
  };
  if (is_on(block + "_master_weights_and_grads")) dtypes.master = dtypes.compute;
  const bool narrow_states = config.value("optimizer.params.fp32_optimizer_states") == false;
  if (narrow_states || (dtypes.compute == Dtype::kBf16 && is_on("bf16_optimizer_states"))) dtypes.state = dtypes.master;
  dtypes.grad = dtype_of(config.value("data_types.grad_accum_dtype")).value_or(dtypes.compute);
  dtypes.autocast = autocast_of(config);
  dtypes.reduce = dtype_of(config.value("communication_data_type")).value_or(dtypes.compute);
  dtypes.cast_inputs = dtypes.compute == Dtype::kFp16 && config.value("fp16.auto_cast") == true;
  dtypes.buffers = dtype_of(config.value("data_types.buffer_dtype"));
  return dtypes;
}

LossScaling loss_scaling_of(const DsConfig& config) {
  const auto whole = [&](const char* key) { return config.value(key).get<int64_t>(); };
  const bool fp16 = config.dtypes.compute == Dtype::kFp16 || config.dtypes.autocast == Dtype::kFp16;
  return {.enabled = fp16,
          .fixed = config.value("fp16.loss_scale").get<double>(),
          .initial = std::ldexp(1.0, static_cast<int>(whole("fp16.initial_scale_power"))),
          .window = whole("fp16.loss_scale_window"),
          .hysteresis = whole("fp16.hysteresis"),
          .consecutive_hysteresis = config.value("fp16.consecutive_hysteresis").get<bool>(),
          .min = config.value("fp16.min_loss_scale").get<double>()};
}

GradientAveraging averaging_of(const DsConfig& config) {
  return {.gradient_allreduce_op = config.value("gradient_allreduce_op").get<std::string>(),
          .prescale_gradients = config.value("prescale_gradients").get<bool>(),
          .gradient_predivide_factor = config.value("gradient_predivide_factor").get<double>()};
}

bool is_supported(const Key& key, const Json& value, Door door) {
  if (status_of(key, door) != Status::kNotYet || value == default_of(key)) return true;
  if (key.notes.supported.empty()) return false;
  const Json fine = Json::parse(key.notes.supported);
  return std::find(fine.begin(), fine.end(), value) != fine.end();
}

}  // namespace

const Json& DsConfig::value(std::string_view path) const {
  for (const ResolvedKey& key : keys) {
    if (key.path == path) return key.value;
  }
  // A key of a block that is not there: its default.
  static const std::map<std::string, Json, std::less<>> kDefaults = [] {
    std::map<std::string, Json, std::less<>> result;
    for (const Key& key : ds_config_keys()) result.emplace(key.path, default_of(key));
    return result;
  }();
  const auto found = kDefaults.find(path);
  TESSERA_INVARIANT(found != kDefaults.end());
  return found->second;
}

DsConfig parse_ds_config(const Document& written, const DsConfigInput& input) {
  Document document = written;
  if (!document.value.is_object()) {
    throw Error(ErrorKind::kConfig, {"a ds_config must be a JSON object", document.place(Pointer()).text(),
                                     "start it with '{', or name the right file"});
  }
  KeyCheck check{.table = ds_config_keys(),
                 .accepts_auto = accepts_auto,
                 .lenient = !input.unknown_keys_are_errors,
                 .door = input.door};
  rewrite_old_forms(document, check);
  rename_aliases(document, check);
  check_keys(document, check);
  check.problems.raise();

  DsConfig config;
  config.name = document.name;
  config.door = input.door;
  config.keys = resolve_keys(document, check);
  fill_auto(config.keys, input.auto_values, document, check.problems);
  check_together(config, document, check.problems);
  check.problems.raise();
  warn_of_offload_without_shards(config, document, check);
  resolve_batch(config, input);

  config.dtypes = dtypes_of(config);
  config.loss_scaling = loss_scaling_of(config);
  config.skip_nonfinite = config.dtypes.compute != Dtype::kBf16 || config.value("bf16.check_grad_overflow") == true;
  config.averaging = averaging_of(config);
  config.gradient_clipping = config.value("gradient_clipping").get<double>();
  config.zero = zero_of(config);
  if (document.value.value("optimizer", Json()).is_object()) config.optimizer = optimizer_of(config, document);
  if (document.value.value("scheduler", Json()).is_object()) config.scheduler = scheduler_of(config, document);
  config.activation_checkpointing = activation_checkpointing_of(config);
  config.aio = aio_of(config);
  config.own = own_of(config);
  config.dataloader_drop_last = config.value("dataloader_drop_last").get<bool>();
  if (const Json& steps = config.value("steps_per_print"); !steps.is_null())
    config.steps_per_print = steps.get<int64_t>();
  config.wall_clock_breakdown = config.value("wall_clock_breakdown").get<bool>();
  config.warnings.insert(config.warnings.begin(), check.warnings.begin(), check.warnings.end());
  return config;
}

DsConfig load_ds_config(const std::string& path, const DsConfigInput& input) {
  return parse_ds_config(parse_hjson(read_text(path), path), input);
}

DsConfig parse_ds_config(const std::string& json_text, const std::string& name, const DsConfigInput& input) {
  return parse_ds_config(parse_hjson(json_text, name), input);
}

DsConfig parse_ds_config(const Json& value, const std::string& base, const DsConfigInput& input) {
  return parse_ds_config(Document{base, value, {}}, input);
}

std::vector<NotYet> not_yet_supported(const DsConfig& config) {
  std::vector<NotYet> result;
  for (const ResolvedKey& key : config.keys) {
    if (!key.given) continue;
    const auto rows = ds_config_keys();
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const Key& candidate) { return candidate.path == key.path; });
    TESSERA_INVARIANT(row != rows.end());
    if (is_supported(*row, key.value, config.door)) continue;
    std::string fix = row->default_value == "null" ? "remove the key" : fmt::format("use {}", row->default_value);
    if (row->default_value == "required") fix = "use one of " + std::string(row->notes.supported);
    if (!row->notes.instead.empty()) fix = row->notes.instead;
    result.push_back(
        {key.path, fmt::format("'{}' is {}: not supported yet", key.path, key.value.dump()), key.where, fix});
  }
  return result;
}

std::string shared_lines(const std::vector<ResolvedKey>& keys) {
  std::string text;
  for (const ResolvedKey& key : keys) {
    if (key.acts && !key.of_host) text += fmt::format("{} = {}\n", key.path, key.value.dump());
  }
  return text;
}

void require_supported(const DsConfig& config) {
  const std::vector<NotYet> missing = not_yet_supported(config);
  if (missing.empty()) return;
  if (missing.size() == 1) throw Error(ErrorKind::kConfig, {missing[0].what, missing[0].where, missing[0].fix});
  std::string what = fmt::format("{} keys ask for something this version does not support yet", missing.size());
  for (const NotYet& key : missing) what += fmt::format("\n  {}: {}; {}", key.where, key.what, key.fix);
  throw Error(ErrorKind::kConfig, {what, missing[0].where, "fix each of them as its line says"});
}

}  // namespace tessera::config
