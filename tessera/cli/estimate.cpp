// tessera estimate --params N            DeepSpeed's own tables of memory for model states
// tessera estimate --model FOLDER        what each stage and offload needs here, and whether it fits
//                  … --plan              the fastest configuration that fits, as a ds_config
#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/cli/commands.h"
#include "tessera/config/hjson.h"
#include "tessera/config/run_file.h"
#include "tessera/config/yaml_file.h"
#include "tessera/layout/mesh_shape.h"
#include "tessera/plan/deepspeed_estimates.h"
#include "tessera/plan/memory_check.h"
#include "tessera/plan/report.h"

namespace tessera::cli {
namespace {

struct EstimateOptions {
  std::string params;
  std::string largest_layer;
  std::string model;
  int64_t lora = 0;
  std::string quantization = "none";
  bool deepspeed = false;
  int64_t nodes = 1;
  int64_t gpus_per_node = 1;
  plan::Sharing sharing;
  std::optional<int> stage;
  std::string config;
  std::optional<int64_t> micro_batch;
  int64_t length = 0;  // 0: 128, or the model's limit where that is less
  std::string dtype;
  bool activation_checkpointing = false;
  std::string device_memory;
  std::string host_memory;
  std::string nvme;
  bool plan = false;
  bool json = false;

  int64_t ranks() const { return nodes * gpus_per_node; }
  int64_t readers() const { return ranks() / sharing.ranks(); }  // each of samples of its own
};

// The power of 1000 that a unit stands for; nothing for what is no unit. "B" alone is a billion parameters, after
// another letter it means bytes: "24GB".
std::optional<int> power_of(std::string unit) {
  if (unit.empty()) return 0;
  if (unit == "B" || unit == "b") return 3;
  if (unit.size() == 2 && unit.back() == 'B') unit.pop_back();
  const std::string letters = "KMGT";
  const size_t power = unit.size() == 1 ? letters.find(static_cast<char>(std::toupper(unit[0]))) : std::string::npos;
  return power == std::string::npos ? std::nullopt : std::optional(static_cast<int>(power) + 1);
}

// "2783e6", "2.7B", "65M", "24GB": a number of at least 1, and a power of 1000.
double number_of(const std::string& text, const std::string& option) {
  constexpr double kLargest = 1e16;
  const bool begins_well = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0;
  char* end = nullptr;
  double number = begins_well ? std::strtod(text.c_str(), &end) : 0;
  const std::optional<int> power = begins_well ? power_of(end) : std::nullopt;
  if (power) number *= std::pow(1000.0, *power);
  if (!power || !(number >= 1) || number > kLargest) {
    throw Error(ErrorKind::kUsage, {fmt::format("'{}' is not a number or size", text), option,
                                    "write it like 2783e6, 2.7B or 65M, or for bytes 24GB"});
  }
  return number;
}

config::Json rows_json(int stage, const plan::DeepSpeedInput& input) {
  config::Json rows = config::Json::array();
  for (const plan::DeepSpeedRow& row : plan::deepspeed_rows(stage, input)) {
    rows.push_back(
        {{"stage", stage}, {"cpu_bytes", row.cpu_bytes}, {"gpu_bytes", row.gpu_bytes}, {"options", row.options}});
  }
  return rows;
}

void print_deepspeed(const EstimateOptions& options, const plan::DeepSpeedInput& input) {
  if (options.stage && *options.stage < 2) {
    throw Error(ErrorKind::kUsage, {fmt::format("DeepSpeed has no table for stage {}", *options.stage), "--stage",
                                    "use 2 or 3, or --model FOLDER for Tessera's own estimate"});
  }
  config::Json all = config::Json::array();
  for (const int stage : {2, 3}) {
    if (options.stage.value_or(stage) != stage) continue;
    if (options.json) {
      for (const config::Json& row : rows_json(stage, input)) all.push_back(row);
    } else {
      std::fputs(plan::deepspeed_table(stage, input).c_str(), stdout);
    }
  }
  if (options.json) fmt::print("{}\n", all.dump(2));
}

plan::ModelCensus census_over(const EstimateOptions& options, const plan::Sharing& sharing) {
  return plan::read_census(options.model,
                           {.adapter_rank = options.lora, .nf4 = options.quantization == "nf4", .sharing = sharing});
}

// ErrorKind::kUsage where the ranks cannot be shared out so.
void check_mesh(const EstimateOptions& options) {
  const auto size = [](int64_t ranks) { return static_cast<int>(ranks); };
  layout::MeshShape::of_world(size(options.ranks()),
                              {{layout::kPipelineAxis, size(options.sharing.pipeline)},
                               {layout::kShardAxis, 0},
                               {layout::kContextAxis, size(options.sharing.context)},
                               {layout::kTensorAxis, size(options.sharing.tensor)}},
                              "the command line");
}

plan::DeepSpeedInput deepspeed_input(const EstimateOptions& options) {
  plan::DeepSpeedInput input{.nodes = options.nodes, .gpus_per_node = options.gpus_per_node};
  if (!options.model.empty()) {
    const plan::ModelCensus model = plan::read_census(options.model);
    input.params = static_cast<double>(model.params);
    input.largest_layer_params = static_cast<double>(model.largest_layer);
    return input;
  }
  input.params = number_of(options.params, "--params");
  if (!options.largest_layer.empty()) {
    input.largest_layer_params = number_of(options.largest_layer, "--largest-layer-params");
  } else if (options.stage.value_or(3) == 3) {
    throw Error(ErrorKind::kUsage, {"stage 3 gathers the largest layer, and its size is not given", "the command line",
                                    "add --largest-layer-params 65e6, or --stage 2"});
  }
  if (input.largest_layer_params > input.params) {
    throw Error(ErrorKind::kUsage, {"the largest layer has more parameters than the model", "--largest-layer-params",
                                    "use at most the value of --params"});
  }
  return input;
}

// What the user asks for: the ds_config's, or mixed precision in bf16 with Adam.
struct Wanted {
  plan::TrainingSetup setup;
  config::Json ds_config;  // null: none given
  int64_t samples_of_a_rank = 1;
  std::string nvme_path;
};

Wanted wanted_of(const EstimateOptions& options) {
  Wanted wanted;
  if (!options.config.empty()) {
    config::Document document = config::load_document(options.config);
    if (options.micro_batch) {
      document.set(config::Pointer("/train_micro_batch_size_per_gpu"), *options.micro_batch, {.file = "--batch"});
    }
    config::DsConfigInput input{.data_parallel_size = options.readers()};
    input.auto_values.leave_unknown = true;
    const config::DsConfig ds = config::parse_ds_config(document, input);
    for (const std::string& warning : ds.warnings) log_warning("{}", warning);
    wanted.setup = plan::setup_of(ds, options.ranks());
    wanted.ds_config = document.value;
    wanted.samples_of_a_rank = ds.batch.micro * ds.batch.accumulation;
    for (const auto& offload : {ds.zero.offload_optimizer, ds.zero.offload_param}) {
      if (offload.device == "nvme") wanted.nvme_path = offload.nvme_path;
    }
  } else {
    const std::string dtype = options.dtype.empty() ? "bf16" : options.dtype;
    const config::Json json = {{"train_micro_batch_size_per_gpu", options.micro_batch.value_or(1)},
                               {dtype, {{"enabled", true}}},
                               {"optimizer", {{"type", "AdamW"}}}};
    config::Json ds_config = json;
    if (dtype == "fp32") ds_config.erase(dtype);
    const config::DsConfig ds =
        config::parse_ds_config(ds_config, "the command line", {.data_parallel_size = options.readers()});
    wanted.setup = plan::setup_of(ds, options.ranks());
    wanted.samples_of_a_rank = ds.batch.micro;
  }
  if (!options.nvme.empty()) {
    if (!std::filesystem::is_directory(options.nvme)) {
      throw Error(ErrorKind::kUsage,
                  {"no such folder: " + options.nvme, "--nvme", "name a folder on the drive for offloaded state"});
    }
    wanted.nvme_path = options.nvme;
  }
  wanted.setup.activation_checkpointing = options.activation_checkpointing;
  wanted.setup.on_cpu = options.device_memory.empty();
  return wanted;
}

int64_t length_of(const EstimateOptions& options, const plan::ModelCensus& model) {
  constexpr int64_t kUsual = 128;
  const int64_t limit = model.architecture ? model.architecture->max_positions : 0;
  if (limit > 0 && options.length > limit) {
    throw Error(ErrorKind::kUsage, {fmt::format("the model takes at most {} tokens, not {}", limit, options.length),
                                    "--length", fmt::format("use at most {}", limit)});
  }
  if (options.length > 0) return options.length;
  return limit > 0 ? std::min(kUsual, limit) : kUsual;
}

plan::RankShare share_for(const EstimateOptions& options, const std::string& nvme_path) {
  plan::MachineRoom room = plan::machine_room(nvme_path);
  if (!options.host_memory.empty()) {
    room.available = static_cast<uint64_t>(number_of(options.host_memory, "--host-memory"));
    room.process_left.reset();
  }
  plan::RankShare share = plan::share_of(room, options.gpus_per_node);
  if (!options.device_memory.empty()) {
    share.device = static_cast<int64_t>(number_of(options.device_memory, "--device-memory"));
  }
  return share;
}

// The ways that are asked for; else the planner weighs them.
std::optional<plan::Plan> plan_for(const EstimateOptions& options, const plan::ModelCensus& part, const Wanted& wanted,
                                   const plan::RankShare& share) {
  plan::PlanInput input{.model = part,
                        .wanted = plan::shared(wanted.setup, options.sharing),
                        .samples_of_a_rank = wanted.samples_of_a_rank,
                        .share = share,
                        .refusal = plan::refusal_of_this_version};
  if (options.sharing.ranks() == 1) {
    input.cluster = {.hosts = options.nodes, .ranks_of_host = options.gpus_per_node};
    input.part_of = [&](const plan::Sharing& sharing) { return census_over(options, sharing); };
    return plan::choose_plan(input);
  }
  std::optional<plan::Plan> found = plan::choose_plan(input);
  if (found) {
    found->sharing = options.sharing;
    const std::string asked = fmt::format("set {} in the run file, as requested", plan::describe(options.sharing));
    found->reasons.insert(found->reasons.begin(), plan::Reason{"", asked});
  }
  return found;
}

void print_plan(const EstimateOptions& options, const plan::ModelCensus& part, const Wanted& wanted,
                const plan::RankShare& share) {
  const std::optional<plan::Plan> found = plan_for(options, part, wanted, share);
  if (!found) {
    throw Error(ErrorKind::kMachine,
                {fmt::format("no configuration that this version supports fits in {} per rank",
                             format_bytes(static_cast<uint64_t>(share.device))),
                 options.model,
                 std::string("use more hosts or more memory") +
                     (share.nvme_path.empty() ? ", or name a folder on an NVMe drive with --nvme" : "") +
                     "; run without --plan to see what each stage needs"});
  }
  const int64_t global_batch = wanted.samples_of_a_rank * options.readers();
  const config::Json ds_config = plan::ds_config_of(found->setup, global_batch, share, wanted.ds_config);
  const std::string text =
      options.json ? ds_config.dump(2) + "\n" : plan::print_with_reasons(ds_config, found->reasons);
  std::fputs(text.c_str(), stdout);
  if (options.json && found->sharing.ranks() > 1) {
    log_info("this plan needs {} in the run file", plan::describe(found->sharing));
  }
  if (options.json && found->setup.activation_checkpointing) {
    log_info("this plan needs training.activation_checkpointing: true in the run file");
  }
}

void estimate(const EstimateOptions& options) {
  if (options.model.empty() == options.params.empty()) {
    throw Error(ErrorKind::kUsage, {options.model.empty() ? "nothing to estimate: neither --model nor --params is given"
                                                          : "--model and --params are both given",
                                    "the command line", "use --model FOLDER or --params N"});
  }
  if (options.quantization != "none" && options.lora == 0) {
    throw Error(ErrorKind::kUsage, {"quantized weights cannot be trained, and there is no adapter", "--quantization",
                                    "add --lora 16, or leave --quantization out"});
  }
  if (!options.params.empty() || options.deepspeed) {
    if (options.lora > 0) {
      throw Error(ErrorKind::kUsage, {"DeepSpeed's tables know no adapters", "--lora",
                                      "use --model FOLDER alone, for Tessera's own estimate"});
    }
    if (options.sharing.ranks() > 1) {
      throw Error(ErrorKind::kUsage, {"DeepSpeed's tables know data-parallel ranks alone", "the command line",
                                      "use --model FOLDER for a model that ranks share"});
    }
    if (options.plan) {
      throw Error(ErrorKind::kUsage,
                  {"--plan needs a model, not just a parameter count", "--plan", "use --model FOLDER instead"});
    }
    print_deepspeed(options, deepspeed_input(options));
    return;
  }
  check_mesh(options);
  const plan::ModelCensus model = census_over(options, {});
  const plan::ModelCensus part = options.sharing.ranks() == 1 ? model : census_over(options, options.sharing);
  Wanted wanted = wanted_of(options);
  wanted.setup.length = length_of(options, model);
  if (model.architecture) wanted.setup.target_share = model.architecture->usual_target_share;
  const plan::RankShare share = share_for(options, wanted.nvme_path);
  if (options.plan) {
    print_plan(options, part, wanted, share);
    return;
  }
  plan::EstimateReport report{.model = model,
                              .part = part,
                              .sharing = options.sharing,
                              .wanted = wanted.setup,
                              .has_config = !options.config.empty(),
                              .share = share,
                              .rows = plan::table_rows(wanted.setup)};
  if (options.stage) std::erase_if(report.rows, [&](const auto& row) { return row.stage != *options.stage; });
  std::fputs(options.json ? (plan::report_json(report).dump(2) + "\n").c_str() : plan::report_text(report).c_str(),
             stdout);
}

}  // namespace

void add_estimate_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<EstimateOptions>();
  CLI::App* command =
      app.add_subcommand("estimate", "Estimate how much memory a model needs, and choose a configuration");
  const auto positive = CLI::Range(int64_t{1}, int64_t{1'000'000});
  command->add_option("--model", options->model, "Hugging Face folder with config.json or safetensors files");
  command->add_option("--params", options->params,
                      "Number of parameters instead of a model, for DeepSpeed's tables, e.g. 2783e6 or 2.7B");
  command->add_option("--largest-layer-params", options->largest_layer,
                      "Number of parameters in the largest layer, e.g. 65M");
  command->add_option("--lora", options->lora, "Rank of an adapter beside every linear layer, which alone is trained")
      ->check(CLI::Range(int64_t{1}, config::RunFile::Adapter::kLargestRank));
  command
      ->add_option("--quantization", options->quantization, "How the weights beside an adapter are kept: none or nf4")
      ->check(CLI::IsMember({"none", "nf4"}))
      ->capture_default_str();
  command->add_flag("--deepspeed", options->deepspeed, "Print DeepSpeed's tables for the model instead of Tessera's");
  command->add_option("--nodes", options->nodes, "Number of hosts")->check(positive)->capture_default_str();
  command->add_option("--ranks,--gpus-per-node", options->gpus_per_node, "Number of ranks on each host")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--tensor", options->sharing.tensor, "Ranks over which each matrix is cut")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--context", options->sharing.context, "Ranks that share the tokens of each sample")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--pipeline", options->sharing.pipeline, "Ranks over which the layers are spread")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--stage", options->stage, "Only this ZeRO stage")->check(CLI::Range(0, 3));
  CLI::Option* config =
      command->add_option("--config", options->config, "ds_config to take precision, optimizer and batch from");
  command->add_option("--batch", options->micro_batch, "Micro batch: samples in one forward pass of one rank [1]")
      ->check(positive);
  command->add_option("--length", options->length, "Tokens per sample [128]")->check(positive);
  command->add_option("--dtype", options->dtype, "Precision without --config: bf16, fp16 or fp32 [bf16]")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->excludes(config);
  command->add_flag("--activation-checkpointing", options->activation_checkpointing,
                    "Keep only each layer's input for backward");
  command->add_option("--device-memory", options->device_memory, "Memory of each rank's accelerator, e.g. 24GB");
  command->add_option("--host-memory", options->host_memory,
                      "Memory of each host instead of what this one has left, e.g. 64GB");
  command->add_option("--nvme", options->nvme, "Folder on an NVMe drive for offloaded state");
  command->add_flag("--plan", options->plan, "Print the fastest ds_config that fits");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &exit_code] {
    estimate(*options);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
