#include "tessera/launch/accelerate_keys.h"

namespace tessera::launch {
namespace {

using Kind = AccelerateKey::Kind;
using Use = AccelerateKey::Use;

constexpr std::string_view kNoTpu = "Tessera runs on CPUs and CUDA devices; remove it";

constexpr AccelerateKey kKeys[] = {
    {"compute_environment", Kind::kText},
    {"distributed_type", Kind::kText},
    {"num_processes", Kind::kWhole},
    {"num_machines", Kind::kWhole},
    {"machine_rank", Kind::kWhole},
    {"main_process_ip", Kind::kText},
    {"main_process_port", Kind::kWhole},
    {"gpu_ids", Kind::kText},
    {"mixed_precision", Kind::kText},
    {"fp16", Kind::kBool},  // an old name: mixed_precision: fp16
    {"use_cpu", Kind::kBool},
    {"debug", Kind::kBool},
    {"enable_cpu_affinity", Kind::kBool},
    {"same_network", Kind::kBool},
    {"rdzv_backend", Kind::kText},
    {"deepspeed_config", Kind::kBlock},
    {"main_training_function", Kind::kText, Use::kPassedOver},  // notebooks and TPUs call it
    {"fsdp_config", Kind::kBlock, Use::kRefused, "Tessera shards by ZeRO: write distributed_type: DEEPSPEED"},
    {"megatron_lm_config", Kind::kBlock, Use::kRefused, "Tessera does not run Megatron-LM; remove it"},
    {"parallelism_config", Kind::kBlock, Use::kRefused, "Accelerate takes it with FSDP 2 only; remove it"},
    {"fp8_config", Kind::kBlock, Use::kRefused, "Tessera has no fp8; remove it"},
    {"mpirun_config", Kind::kBlock, Use::kRefused, "start the program with mpirun instead; remove it"},
    {"dynamo_config", Kind::kBlock, Use::kRefused, "the launcher does not ask for torch.compile; remove it"},
    {"dynamo_backend", Kind::kText, Use::kRefused, "the launcher does not ask for torch.compile; remove it", "NO"},
    {"downcast_bf16", Kind::kBool, Use::kRefused, kNoTpu},
    {"tpu_name", Kind::kText, Use::kRefused, kNoTpu},
    {"tpu_zone", Kind::kText, Use::kRefused, kNoTpu},
    {"tpu_use_cluster", Kind::kBool, Use::kRefused, kNoTpu},
    {"tpu_use_sudo", Kind::kBool, Use::kRefused, kNoTpu},
    {"tpu_vm", Kind::kList, Use::kRefused, kNoTpu},
    {"tpu_env", Kind::kList, Use::kRefused, kNoTpu},
    {"command_file", Kind::kText, Use::kRefused, kNoTpu},
    {"commands", Kind::kList, Use::kRefused, kNoTpu},
};

constexpr AccelerateKey kDeepSpeedKeys[] = {
    {"deepspeed_config_file", Kind::kText},
    {"zero_stage", Kind::kWhole},
    {"gradient_accumulation_steps", Kind::kNumberOrAuto},
    {"gradient_clipping", Kind::kNumberOrAuto},
    {"offload_optimizer_device", Kind::kText},
    {"offload_optimizer_nvme_path", Kind::kText},
    {"offload_param_device", Kind::kText},
    {"offload_param_nvme_path", Kind::kText},
    {"zero3_init_flag", Kind::kBool},
    {"zero3_save_16bit_model", Kind::kBool},
    {"deepspeed_moe_layer_cls_names", Kind::kText},
    {"deepspeed_hostfile", Kind::kText},
    {"deepspeed_inclusion_filter", Kind::kText},
    {"deepspeed_exclusion_filter", Kind::kText},
    {"deepspeed_multinode_launcher", Kind::kText},
};

}  // namespace

std::span<const AccelerateKey> accelerate_keys() { return kKeys; }
std::span<const AccelerateKey> accelerate_deepspeed_keys() { return kDeepSpeedKeys; }

}  // namespace tessera::launch
