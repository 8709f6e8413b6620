#include "tessera/engine/wiring.h"

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/engine/same_run.h"
#include "tessera/engine/traffic.h"
#include "tessera/optim/optimizers.h"
#include "tessera/storage/dtype.h"
#include "tessera/zero/unreadable.h"

namespace tessera::engine {
namespace {

using storage::scalar_type;

// Only what is sharded is offloaded. Where the CPU trains, the host's memory is the device's, so "cpu" moves nothing.
zero::Offload offload_of(const config::DsConfig& config, at::Device device, int ranks_of_host) {
  const config::ZeroOptions& zero = config.zero;
  const storage::IoOptions io = storage::io_options_of(config.aio);
  const auto swap_file = [&io](const config::OffloadOptions& options, const std::string& key) {
    return options.device == "nvme" ? std::make_shared<storage::SwapFile>(options.nvme_path, io, key) : nullptr;
  };
  zero::Offload offload;
  if (!device.is_cpu()) {
    offload.pinned = storage::PinnedMemory::create(device.type(), storage::PinnedMemory::usual_limit(ranks_of_host));
  }
  if (zero.stage >= 1) {
    offload.optimizer = swap_file(zero.offload_optimizer, "zero_optimization.offload_optimizer.nvme_path");
    offload.optimizer_on_host = !device.is_cpu() && zero.offload_optimizer.device != "none";
    offload.optimizer_options = zero.offload_optimizer;
    offload.sub_group_size = zero.sub_group_size;
  }
  if (zero.stage >= 3) {
    offload.parameters = swap_file(zero.offload_param, "zero_optimization.offload_param.nvme_path");
    offload.parameters_on_host = !device.is_cpu() && zero.offload_param.device != "none";
    offload.param_options = zero.offload_param;
    offload.fetches = std::make_shared<storage::BufferPool>(
        static_cast<size_t>(std::max<int64_t>(1, zero.offload_param.buffer_count)),
        zero.offload_param.pin_memory ? offload.pinned : nullptr);
  }
  const bool keeps_activations = !device.is_cpu() && config.activation_checkpointing.cpu_checkpointing;
  if (offload.optimizer_on_host || offload.parameters_on_host || keeps_activations) {
    const auto pins = [](bool is_there, const config::OffloadOptions& options) {
      return is_there && options.pin_memory;
    };
    const bool any = keeps_activations || pins(offload.optimizer_on_host, offload.optimizer_options) ||
                     pins(offload.parameters_on_host, offload.param_options);
    auto memory = any ? offload.pinned : storage::PinnedMemory::create(device.type(), /*limit=*/0);
    offload.link = std::make_shared<storage::HostLink>(device, std::move(memory));
  }
  return offload;
}

zero::Policy policy_of(const config::DsConfig& config, const comm::Group& sharers, at::Device device) {
  const int ranks = sharers.size();
  const config::Dtypes& dtypes = config.dtypes;
  const config::GradientAveraging& averaging = config.averaging;
  zero::Policy policy = zero::policy_of_stage(config.zero.stage, scalar_type(dtypes.compute), ranks);
  policy.device = device;
  policy.master_dtype = scalar_type(dtypes.master);
  policy.state_dtype = scalar_type(dtypes.state);
  policy.grad_dtype = scalar_type(dtypes.grad);
  policy.averaging.dtype = scalar_type(dtypes.reduce);
  const double predivide = averaging.gradient_predivide_factor;
  policy.averaging.before = averaging.prescale_gradients ? 1.0 / ranks : 1.0 / predivide;
  policy.averaging.after = averaging.prescale_gradients ? 1 : predivide / ranks;
  if (averaging.gradient_allreduce_op == "sum") policy.averaging.before = policy.averaging.after = 1;
  policy.reduction = config.zero.reduction;
  policy.residency = config.zero.residency;
  policy.offload = offload_of(config, device, sharers.local_size());
  policy.publishes_lazily = config.own.lazy_publish.value_or(false);
  const bool has_that_choice = config.zero.stage == 1 || config.zero.stage == 2;  // as in DeepSpeed
  policy.refuses_unused = has_that_choice && !config.zero.ignore_unused_parameters;
  return policy;
}

void check_parameters(const ModelTree& tree, bool has_fill) {
  bool any = false;
  for (const zero::ModuleParams& module : tree.modules) {
    for (const zero::NamedParam& param : module.params) {
      any = true;
      if (zero::ShardedModel::is_taken(param.tensor)) {
        throw Error(ErrorKind::kUsage, {"the model already belongs to an engine, which trains '" + param.name() + "'",
                                        "initialize", "use that engine, or destroy it before you make another"});
      }
      if (!param.shape && zero::is_unreadable(param.tensor)) {
        throw Error(
            ErrorKind::kUsage,
            {"the parameter '" + param.name() + "' has no values: an engine that is gone had sharded it", "initialize",
             "make the model anew and load its weights, e.g. from a checkpoint that the first engine saved"});
      }
      const bool is_bytes = param.is_bytes() || param.tensor.scalar_type() == at::kByte;  // see layout::Storage
      if (!is_bytes && !at::isFloatingType(param.tensor.scalar_type())) {
        throw Error(ErrorKind::kUsage,
                    {"the parameter '" + param.name() + "' has neither a floating-point dtype nor bytes (uint8)",
                     "initialize", "register it as a buffer"});
      }
      if (!has_fill && zero::is_declared_only(param.tensor)) {
        throw Error(ErrorKind::kUsage, {"the parameter '" + param.name() + "' is declared but has no values",
                                        "initialize", "give InitializeOptions::fill, or materialize the model first"});
      }
    }
  }
  if (!any) throw Error(ErrorKind::kUsage, {"the model has no parameters", "initialize", "register them"});
}

// Parameter groups, and to which of them each parameter belongs.
std::vector<optim::ParamGroup> group_parameters(ModelTree& tree, const config::DsConfig& config,
                                                const InitializeOptions& options) {
  if (!options.param_groups.empty()) {
    for (zero::ModuleParams& module : tree.modules) {
      for (zero::NamedParam& param : module.params) {
        const std::optional<size_t> group = options.group_of(param.name());
        param.spec.trains = group.has_value();
        param.group = group.value_or(0);
      }
    }
    return options.param_groups;
  }
  const config::OptimizerOptions none;
  const config::OptimizerOptions& named = options.optimizer ? none : *config.optimizer;
  for (zero::ModuleParams& module : tree.modules) {
    for (zero::NamedParam& param : module.params) {
      param.spec.decays = !options.no_decay || !options.no_decay(param.name());
      param.group = optim::group_of(named, param.name(), param.tensor.dim(), param.spec.decays);
    }
  }
  if (!options.optimizer) return optim::param_groups(named);
  std::vector<optim::ParamGroup> groups(2, options.param_group);
  groups[1].weight_decay = 0;
  return groups;
}

// Compressed, a step moves a bit an element; sending round the weights of a sharded step would move 16.
void keep_whole(zero::Policy& policy, const comm::Mesh& mesh) {
  if (mesh.shape().holds_parts()) {
    throw Error(ErrorKind::kConfig, {"an optimizer with compressed communication needs the whole model on every rank",
                                     "initialize", "train with data parallelism alone, or choose another optimizer"});
  }
  if (!policy.device->is_cpu()) {
    throw Error(ErrorKind::kConfig, {"an optimizer with compressed communication works only on the CPU", "initialize",
                                     "train on the CPU, or choose another optimizer"});
  }
  if (policy.shard_gradients) {
    throw Error(ErrorKind::kConfig,
                {"an optimizer with compressed communication works only at stages 0 and 1", "initialize",
                 "set zero_optimization.stage to 0 or 1, or choose another optimizer"});
  }
  if (policy.offload.optimizer) {
    throw Error(ErrorKind::kConfig,
                {"an optimizer with compressed communication keeps its state in memory", "initialize",
                 "set offload_optimizer.device to none, or choose another optimizer"});
  }
  if (policy.shard_optimizer && mesh.rank() == 0) {
    log_info(
        "compressed communication keeps weights and optimizer state whole: stage 1 takes as much memory as stage 0");
  }
  policy.shard_optimizer = false;
}

void check_whole_model(const zero::Policy& policy) {
  if (policy.offload.optimizer || policy.offload.parameters) {
    throw Error(ErrorKind::kConfig,
                {"an optimizer that updates the whole model at once needs its state in memory", "initialize",
                 "offload to cpu instead of nvme, or choose an optimizer that the configuration can name"});
  }
  if (policy.master_dtype != at::kFloat) {
    throw Error(ErrorKind::kConfig, {"a custom optimizer updates fp32 weights", "initialize",
                                     "leave out bf16_master_weights_and_grads and fp16_master_weights_and_grads"});
  }
}

// What the host can neither page out nor use for files any more.
void say_what_is_pinned(const zero::Policy& policy) {
  if (!policy.offload.link || policy.offload.link->memory().limit() == 0) return;
  const storage::PinnedMemory& memory = policy.offload.link->memory();
  log_info(
      "pinned host memory: {} taken so far on this rank, at most {} (half of what this host has, shared by its ranks)",
      format_bytes(static_cast<uint64_t>(memory.pinned_bytes())), format_bytes(static_cast<uint64_t>(memory.limit())));
}

void place_buffers(std::vector<at::Tensor>& buffers, at::Device device, std::optional<at::ScalarType> floating) {
  for (at::Tensor& buffer : buffers) {
    const bool casts = floating && at::isFloatingType(buffer.scalar_type());
    const at::Tensor placed = buffer.to(device, casts ? *floating : buffer.scalar_type());
    if (!placed.is_same(buffer)) buffer.set_data(placed);
  }
}

at::Device device_of(const ModelTree& tree, const InitializeOptions& options) {
  if (options.device) return *options.device;
  for (const zero::ModuleParams& module : tree.modules) {
    for (const zero::NamedParam& param : module.params) return param.tensor.device();
  }
  return at::kCPU;
}

}  // namespace

Wiring wire(ModelTree tree, const config::DsConfig& config, const InitializeOptions& options,
            std::shared_ptr<comm::Mesh> mesh) {
  if (!config.optimizer && !options.optimizer) {
    throw Error(ErrorKind::kConfig, {"the configuration has no 'optimizer'", config.name,
                                     R"(add one, e.g. "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}})"});
  }
  check_parameters(tree, static_cast<bool>(options.fill));
  const at::Device device = device_of(tree, options);
  place_buffers(tree.buffers, device,
                config.dtypes.buffers ? std::optional(scalar_type(*config.dtypes.buffers)) : std::nullopt);

  Wiring wiring;
  wiring.optimizer = options.optimizer;
  if (!wiring.optimizer) {
    wiring.optimizer =
        optim::optimizers().find(config.optimizer->type, config.optimizer->where).make(*config.optimizer);
  }
  if (config.scheduler) {
    wiring.schedule = optim::schedules().find(config.scheduler->type, config.scheduler->where).make(*config.scheduler);
  }
  wiring.groups = group_parameters(tree, config, options);
  if (options.specify) {
    for (zero::ModuleParams& module : tree.modules) {
      for (zero::NamedParam& param : module.params) options.specify(param.spec);
    }
  }
  const std::shared_ptr<comm::Group> sharers = mesh->data_group();
  require_same_run({tree, config, *wiring.optimizer, wiring.groups}, *mesh);
  zero::Policy policy = policy_of(config, *sharers, device);
  policy.placeholders_as_deepspeed = tree.placeholders_as_deepspeed;
  policy.traffic = traffic_of(config.zero, *mesh, device);
  const zero::OptimizerNeeds needs{.states = wiring.optimizer->state_names().size(),
                                   .numbers = wiring.optimizer->number_names().size(),
                                   .sign_errors = wiring.optimizer->averages_by_signs()};
  if (needs.sign_errors) keep_whole(policy, *mesh);
  if (wiring.optimizer->takes_whole_model()) check_whole_model(policy);
  wiring.sharded = zero::ShardedModel::create(std::move(tree.modules), needs, policy, mesh, options.fill);
  if (mesh->rank() == 0) say_what_is_pinned(policy);
  const std::string traffic = traffic_in_words(*wiring.sharded);
  if (mesh->rank() == 0 && !traffic.empty()) log_info("{}", traffic);
  return wiring;
}

}  // namespace tessera::engine
