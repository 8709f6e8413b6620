#include "tessera/launch/accelerate_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>

#include "tessera/base/suggest.h"
#include "tessera/base/trimmed.h"
#include "tessera/config/problems.h"
#include "tessera/config/yaml_file.h"
#include "tessera/launch/accelerate_keys.h"

namespace tessera::launch {
namespace {

using config::Document;
using config::Json;
using config::Pointer;
using Kind = AccelerateKey::Kind;
using Use = AccelerateKey::Use;

const Pointer kDeepSpeedBlock("/deepspeed_config");

std::vector<std::string> names_of(std::span<const AccelerateKey> table) {
  std::vector<std::string> names;
  for (const AccelerateKey& key : table) names.emplace_back(key.name);
  return names;
}

std::optional<bool> as_bool(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_string()) return std::nullopt;
  std::string text = value.get<std::string>();
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  if (text == "yes" || text == "on" || text == "true") return true;
  if (text == "no" || text == "off" || text == "false") return false;
  return std::nullopt;
}

bool is_of_kind(const Json& value, Kind kind) {
  switch (kind) {
    case Kind::kText:
      return value.is_string() || value.is_number_integer();  // gpu_ids: 0, and paths that are numbers
    case Kind::kWhole:
      return value.is_number_integer() && value >= std::numeric_limits<int>::min() &&
             value <= std::numeric_limits<int>::max();
    case Kind::kBool:
      return as_bool(value).has_value();
    case Kind::kNumberOrAuto:
      return value.is_number() || value == "auto";
    case Kind::kBlock:
      return value.is_object();
    case Kind::kList:
      return value.is_array();
  }
  return false;
}

const char* words_of(Kind kind) {
  switch (kind) {
    case Kind::kText:
      return "a text";
    case Kind::kWhole:
      return "a whole number";
    case Kind::kBool:
      return "true or false";
    case Kind::kNumberOrAuto:
      return "a number or auto";
    case Kind::kBlock:
      return "a block of keys";
    case Kind::kList:
      return "a list";
  }
  return "";
}

bool asks_for_nothing(const AccelerateKey& key, const Json& value) {
  if (value.empty()) return true;  // {}, [], null
  if (value.is_string() && (value == "" || (!key.harmless.empty() && value == key.harmless))) return true;
  return as_bool(value) == false;
}

// "1.0" of 1.0, "true" of true, a text as it is: what Python's str(value).lower() makes of each.
std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// One reading of a file. Problems are collected, so that one error says them all.
class Reader {
 public:
  explicit Reader(const std::string& path) : file_(config::load_document(path)) {}

  AccelerateConfig read() {
    if (!file_.value.is_object()) {
      add("", "the file is no block of keys", "write it with accelerate config");
      problems_.raise();
    }
    check_keys(Pointer(), accelerate_keys());
    if (given("deepspeed_config") && at("deepspeed_config").is_object()) {
      check_keys(kDeepSpeedBlock, accelerate_deepspeed_keys());
    }
    problems_.raise();  // what follows relies on the kinds of values
    read_type();
    problems_.raise();
    read_machines();
    read_devices();
    read_precision();
    if (config_.runs == AccelerateConfig::Runs::kDeepSpeed) {
      read_deepspeed();
    } else {
      refuse_deepspeed_keys();
    }
    problems_.raise();
    set_variables();
    return std::move(config_);
  }

 private:
  // Keys are "num_processes" and "deepspeed_config/zero_stage".
  static Pointer pointer(const std::string& key) { return Pointer(key.empty() ? "" : "/" + key); }
  static std::string in_deepspeed(const std::string& key) { return "deepspeed_config/" + key; }

  bool given(const std::string& key) const {
    const Pointer where = pointer(key);
    return file_.value.contains(where) && !file_.value.at(where).is_null();
  }
  const Json& at(const std::string& key) const { return file_.value.at(pointer(key)); }
  std::string text(const std::string& key, const std::string& otherwise = "") const {
    return given(key) ? text_of(at(key)) : otherwise;
  }
  bool flag(const std::string& key) const { return given(key) && *as_bool(at(key)); }
  int whole(const std::string& key, int otherwise) const { return given(key) ? at(key).get<int>() : otherwise; }

  void add(const std::string& key, const std::string& what, const std::string& fix) {
    problems_.add(what, file_.place(pointer(key)), fix);
  }
  void warn(const std::string& key, const std::string& what) {
    config_.warnings.push_back(fmt::format("{}: {}", file_.place(pointer(key)).text(), what));
  }

  void check_keys(const Pointer& block, std::span<const AccelerateKey> table) {
    const std::vector<std::string> known = names_of(table);
    for (const auto& [name, value] : file_.value.at(block).items()) {
      const Pointer where = block / name;
      const auto key = std::find_if(table.begin(), table.end(), [&](const auto& each) { return each.name == name; });
      if (key == table.end()) {
        const auto nearest = nearest_name(name, known);
        problems_.add(fmt::format("unknown key '{}'", config::dotted(where)), file_.place(where),
                      nearest ? fmt::format("did you mean '{}'?", *nearest)
                              : fmt::format("known here: {}", fmt::join(known, ", ")));
      } else if (key->use == Use::kRefused && !asks_for_nothing(*key, value)) {
        problems_.add(fmt::format("'{}' is {}", config::dotted(where), value.is_structured() ? "given" : value.dump()),
                      file_.place(where), std::string(key->instead));
      } else if (key->use != Use::kRefused && !value.is_null() && !is_of_kind(value, key->kind)) {
        problems_.add(fmt::format("'{}' is {}", config::dotted(where), value.dump()), file_.place(where),
                      fmt::format("use {}", words_of(key->kind)));
      }
    }
  }

  // The value, which has to be one of these; the first where it is not given.
  std::string choice(const std::string& key, const std::vector<std::string>& allowed) {
    const std::string value = text(key, allowed.front());
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      const auto nearest = nearest_name(value, allowed);
      add(key, fmt::format("'{}' is '{}'", config::dotted(pointer(key)), value),
          nearest ? fmt::format("did you mean '{}'?", *nearest) : fmt::format("use {}", fmt::join(allowed, ", ")));
    }
    return value;
  }

  void read_type() {
    using Runs = AccelerateConfig::Runs;
    if (choice("compute_environment", {"LOCAL_MACHINE", "AMAZON_SAGEMAKER"}) == "AMAZON_SAGEMAKER") {
      add("compute_environment", "'compute_environment' is 'AMAZON_SAGEMAKER'", "Tessera starts local machines only");
    }
    if (!given("distributed_type")) {
      return add("", "there is no distributed_type", "say NO, MULTI_CPU, MULTI_GPU or DEEPSPEED");
    }
    const std::string type = choice(
        "distributed_type", {"DEEPSPEED", "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA",
                             "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON", "FSDP", "XLA", "MEGATRON_LM"});
    if (type == "NO") {
      config_.runs = Runs::kProgram;
    } else if (type == "MULTI_CPU") {
      config_.runs = Runs::kOnCpus;
    } else if (type == "MULTI_GPU") {
      config_.runs = Runs::kOnDevices;
    } else if (type == "DEEPSPEED") {
      config_.runs = Runs::kDeepSpeed;
    } else if (problems_.empty()) {
      add("distributed_type", fmt::format("'distributed_type' is '{}', which Tessera does not run", type),
          "use NO, MULTI_CPU, MULTI_GPU or DEEPSPEED");
    }
  }

  void read_machines() {
    if (given("num_processes") && whole("num_processes", 1) != -1) {  // -1: left to the command line
      config_.num_processes = whole("num_processes", 1);
    } else if (!file_.value.contains("num_processes") && config_.runs == AccelerateConfig::Runs::kProgram) {
      config_.num_processes = 1;
    }
    config_.num_machines = whole("num_machines", 1);
    config_.machine_rank = whole("machine_rank", 0);
    config_.main_process_ip = text("main_process_ip");
    if (given("main_process_port")) config_.main_process_port = whole("main_process_port", 0);
    config_.same_network = flag("same_network");
    choice("rdzv_backend", {"static", "c10d"});  // ranks meet in Tessera's own way, at the same place
    const int machines = config_.num_machines;
    if (config_.num_processes.value_or(1) < 1) {
      add("num_processes", fmt::format("'num_processes' is {}", *config_.num_processes), "use 1 or more");
    } else if (machines < 1) {
      add("num_machines", fmt::format("'num_machines' is {}", machines), "use 1 or more");
    } else if (config_.num_processes.value_or(0) % machines != 0) {
      add("num_processes",
          fmt::format("{} processes do not divide among {} machines", *config_.num_processes, machines),
          "num_processes counts those of all machines, each of which has equally many");
    }
    if (config_.machine_rank < 0 || config_.machine_rank >= std::max(1, machines)) {
      add("machine_rank", fmt::format("'machine_rank' is {} of {} machines", config_.machine_rank, machines),
          "machines are numbered from 0");
    }
    if (config_.main_process_port.value_or(0) < 0 || config_.main_process_port.value_or(0) > 65535) {
      add("main_process_port", fmt::format("'main_process_port' is {}", *config_.main_process_port),
          "use a port up to 65535, or 0 for a free one");
    }
    // DeepSpeed's own launchers find rank 0's host in their hostfile.
    const bool has_hostfile = given(in_deepspeed("deepspeed_hostfile"));
    if (machines > 1 && config_.main_process_ip.empty() && !has_hostfile) {
      add("num_machines", fmt::format("a run of {} machines needs main_process_ip", machines),
          "give the address of the machine whose machine_rank is 0");
    }
    if (machines > 1 && !has_hostfile && config_.main_process_port.value_or(0) == 0) {
      add("num_machines", fmt::format("a run of {} machines needs main_process_port", machines),
          "give a port that is free on the machine whose machine_rank is 0");
    }
  }

  void read_devices() {
    using Runs = AccelerateConfig::Runs;
    config_.use_cpu = flag("use_cpu");
    if (config_.use_cpu && config_.runs == Runs::kOnDevices) {
      add("use_cpu", "'use_cpu' is true, and 'distributed_type' is 'MULTI_GPU'", "write MULTI_CPU, or use_cpu: false");
    }
    const std::string ids = text("gpu_ids", "all");
    if (ids == "all") return;
    std::istringstream list(ids);
    std::set<std::string> seen;
    for (std::string part; std::getline(list, part, ',');) {
      const std::string id(trimmed(part, " "));
      if (id.empty() || !seen.insert(id).second) {
        add("gpu_ids", fmt::format("'gpu_ids' is '{}'", ids), "name each device once, as in 0,1, or write all");
        return;
      }
      config_.gpu_ids.push_back(id);
    }
    const auto devices = static_cast<int>(config_.gpu_ids.size());
    const int here = config_.num_processes.value_or(1) / std::max(1, config_.num_machines);
    if (config_.runs == Runs::kOnDevices && devices < 2 && config_.num_machines <= 1) {
      add("gpu_ids", fmt::format("'gpu_ids' has {} device for MULTI_GPU", devices), "name two or more, or write all");
    } else if (here > devices) {
      add("gpu_ids", fmt::format("{} processes of a machine have {} devices ('gpu_ids')", here, devices),
          "name as many devices, or lower num_processes");
    }
  }

  void read_precision() {
    precision_ =
        given("mixed_precision") || !flag("fp16") ? choice("mixed_precision", {"no", "fp16", "bf16", "fp8"}) : "fp16";
    if (precision_ == "fp8") add("mixed_precision", "'mixed_precision' is 'fp8'", "Tessera has no fp8: use bf16");
  }

  bool says_precision() const { return given("mixed_precision") || flag("fp16"); }

  void read_deepspeed() {
    AccelerateConfig::DeepSpeed& deepspeed = config_.deepspeed;
    const auto key = [](const char* name) { return in_deepspeed(name); };
    deepspeed.hostfile = text(key("deepspeed_hostfile"));
    deepspeed.inclusion_filter = text(key("deepspeed_inclusion_filter"));
    deepspeed.exclusion_filter = text(key("deepspeed_exclusion_filter"));
    deepspeed.multinode_launcher = choice(key("deepspeed_multinode_launcher"),
                                          {"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"});
    for (const char* device : {"offload_optimizer", "offload_param"}) {
      const std::string name = fmt::format("{}_device", device);
      const std::string path = fmt::format("{}_nvme_path", device);
      const bool is_nvme = choice(in_deepspeed(name), {"none", "cpu", "nvme"}) == "nvme";
      const std::string folder = text(in_deepspeed(path), "none");
      if (is_nvme && folder == "none" && !given(key("deepspeed_config_file"))) {
        add(in_deepspeed(name), fmt::format("'deepspeed_config.{}' is 'nvme', without a folder", name),
            fmt::format("give {}", path));
      }
    }
    if (given(key("zero_stage")) && (whole(key("zero_stage"), 0) < 0 || whole(key("zero_stage"), 0) > 3)) {
      add(key("zero_stage"), fmt::format("'deepspeed_config.zero_stage' is {}", whole(key("zero_stage"), 0)),
          "use 0, 1, 2 or 3");
    }
    if (!deepspeed.inclusion_filter.empty() && !deepspeed.exclusion_filter.empty()) {
      add(key("deepspeed_inclusion_filter"), "there are both an inclusion and an exclusion filter", "keep one");
    }
    if (config_.num_machines > 1 && config_.uses_hostfile() && deepspeed.hostfile.empty()) {
      add(key("deepspeed_multinode_launcher"),
          fmt::format("the launcher '{}' needs deepspeed_hostfile", deepspeed.multinode_launcher),
          "give a hostfile, or write standard and start the command on every machine");
    }
    if (given(key("deepspeed_config_file"))) {
      check_deepspeed_file();
    } else if (flag(key("zero3_init_flag")) && whole(key("zero_stage"), 2) != 3) {
      warn(key("zero3_init_flag"), "'zero3_init_flag' acts only at stage 3; Accelerate sets it to false");
    }
  }

  // Of what the file itself has to say; DeepSpeedPlugin._deepspeed_config_checks has the same list.
  void check_deepspeed_file() {
    const std::string key = in_deepspeed("deepspeed_config_file");
    for (const char* name :
         {"gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
          "offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model"}) {
      if (!file_.value.contains(pointer(in_deepspeed(name)))) continue;
      add(in_deepspeed(name), fmt::format("'{}' and 'deepspeed_config_file' are both given", name),
          "say it in DeepSpeed's file, and remove it here");
    }
    if (says_precision()) {
      add("mixed_precision", "'mixed_precision' and 'deepspeed_config_file' are both given",
          "say it in DeepSpeed's file, and remove it here");
    }
    if (!std::filesystem::exists(text(key))) {
      add(key, fmt::format("there is no file '{}'", text(key)), "a relative path begins at the current folder");
    }
  }

  void refuse_deepspeed_keys() {
    if (!given("deepspeed_config") || at("deepspeed_config").empty()) return;
    add("deepspeed_config", "'deepspeed_config' is given, and 'distributed_type' is not 'DEEPSPEED'",
        "write distributed_type: DEEPSPEED, or remove the block");
  }

  void set_variables() {
    using Runs = AccelerateConfig::Runs;
    Environment& variables = config_.variables;
    variables["ACCELERATE_MIXED_PRECISION"] = precision_;
    if (flag("debug")) variables["ACCELERATE_DEBUG_MODE"] = "true";
    if (flag("enable_cpu_affinity")) variables["ACCELERATE_CPU_AFFINITY"] = "1";
    if (!config_.gpu_ids.empty())
      variables["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(config_.gpu_ids, ","));
    if (config_.runs == Runs::kDeepSpeed) return set_deepspeed_variables();
    variables.insert({{"ACCELERATE_DYNAMO_BACKEND", "NO"},
                      {"ACCELERATE_DYNAMO_MODE", "default"},
                      {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
                      {"ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
                      {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"}});
    if (config_.runs == Runs::kOnDevices) return;
    variables["ACCELERATE_USE_CPU"] = config_.use_cpu ? "True" : "False";
    if (!config_.use_cpu) return;
    variables["KMP_AFFINITY"] = "granularity=fine,compact,1,0";
    variables["KMP_BLOCKTIME"] = "1";
  }

  void set_deepspeed_variables() {
    constexpr std::pair<const char*, const char*> kVariables[] = {
        {"zero_stage", "DEEPSPEED_ZERO_STAGE"},
        {"gradient_accumulation_steps", "GRADIENT_ACCUMULATION_STEPS"},
        {"gradient_clipping", "GRADIENT_CLIPPING"},
        {"offload_optimizer_device", "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"},
        {"offload_param_device", "DEEPSPEED_OFFLOAD_PARAM_DEVICE"},
        {"offload_optimizer_nvme_path", "DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"},
        {"offload_param_nvme_path", "DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"},
        {"zero3_init_flag", "DEEPSPEED_ZERO3_INIT"},
        {"zero3_save_16bit_model", "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"},
        {"deepspeed_config_file", "DEEPSPEED_CONFIG_FILE"},
        {"deepspeed_moe_layer_cls_names", "DEEPSPEED_MOE_LAYER_CLS_NAMES"},
    };
    Environment& variables = config_.variables;
    variables["ACCELERATE_USE_DEEPSPEED"] = "true";
    variables["ACCELERATE_CONFIG_DS_FIELDS"] = deepspeed_fields();
    for (const auto& [key, name] : kVariables) {
      const std::string path = in_deepspeed(key);
      if (!given(path)) continue;
      const auto is_flag = [&, name = std::string_view(key)] { return name.starts_with("zero3_"); };
      variables[fmt::format("ACCELERATE_{}", name)] = is_flag() ? (flag(path) ? "true" : "false") : text(path);
    }
  }

  // What the file says of DeepSpeed, in its order: the program compares it with DeepSpeed's own file.
  std::string deepspeed_fields() const {
    std::vector<std::pair<std::pair<int, int>, std::string>> fields;
    if (given("deepspeed_config")) {
      for (const auto& [name, value] : at("deepspeed_config").items()) {
        const config::Place place = file_.place(kDeepSpeedBlock / name);
        fields.push_back({{place.line, place.column}, name});
      }
    }
    std::sort(fields.begin(), fields.end());
    std::vector<std::string> names;
    for (const auto& [place, name] : fields) names.push_back(name);
    if (says_precision()) names.emplace_back("mixed_precision");
    return fmt::format("{}", fmt::join(names, ","));
  }

  Document file_;
  config::Problems problems_;
  AccelerateConfig config_;
  std::string precision_ = "no";
};

}  // namespace

AccelerateConfig load_accelerate_config(const std::string& path) { return Reader(path).read(); }

}  // namespace tessera::launch
