#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/export_sums.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/weight_files.h"
#include "tessera/storage/atomic_dir.h"
#include "tessera/storage/dtype.h"
#include "tessera/storage/peft_format.h"
#include "tessera/storage/safetensors.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr const char* kChatTemplate = "chat_template.jinja";
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "vocab.txt",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "spiece.model",
                                           kChatTemplate,
                                           "generation_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json"};

// Replacing a folder removes what is in it, so it may hold only what an export writes.
void refuse_to_remove(const fs::path& output) {
  if (!fs::exists(output)) return;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage,
                {what, output.string(), "choose a folder that does not exist yet, or an earlier export"});
  };
  if (!fs::is_directory(output)) refuse("the export folder is a file");
  for (const fs::directory_entry& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    const bool ours =
        name == "config.json" || name == storage::kAdapterConfig || name == storage::kAdapterWeights ||
        name == kExportSums || is_weight_file(name) ||
        std::find(std::begin(kTokenizerFiles), std::end(kTokenizerFiles), name) != std::end(kTokenizerFiles);
    if (!ours) refuse("the export folder holds '" + name + "', which is not part of an export");
  }
}

// tessera train notes in the checkpoint which folder it began from.
fs::path model_folder(const ExportInput& input, const Manifest& manifest) {
  if (!input.model.empty()) return input.model;
  const std::string noted = manifest.client_state.value("model_folder", "");
  if (!noted.empty() && fs::exists(fs::path(noted) / "config.json")) return noted;
  throw Error(ErrorKind::kUsage, {"it is not known which model the checkpoint belongs to", input.checkpoint.string(),
                                  "name the folder with that model's config.json (--model)"});
}

std::vector<ShardFile> write_weights(CheckpointReader& checkpoint, const fs::path& output, const ExportInput& input) {
  const at::NoGradGuard no_grad;
  const Manifest& manifest = checkpoint.manifest();
  std::vector<storage::PlannedTensor> plan;
  for (const auto& [name, tensor] : manifest.tensors) plan.push_back({name, input.dtype, tensor.shape});
  int64_t largest = 0;
  for (const auto& [name, tensor] : manifest.tensors) largest = std::max(largest, tensor.numel());
  const at::Tensor buffer = at::empty({largest}, input.dtype);  // one tensor at a time, all in the same place
  const auto read = [&](const std::string& name) {
    const at::Tensor value = buffer.narrow(0, 0, manifest.tensors.at(name).numel());
    checkpoint.source().read(name, kWeight, 0, value);
    return value;
  };
  WeightFiles how = input.files;
  how.aliases = manifest.aliases;
  return write_weight_files(output, plan, read, how);
}

// What was trained beside a frozen model: its weights and adapter_config.json, which tessera train notes.
std::vector<ShardFile> write_adapter(CheckpointReader& checkpoint, const fs::path& output, const ExportInput& input) {
  std::vector<storage::PlannedTensor> plan;
  for (const auto& [name, tensor] : checkpoint.manifest().tensors)
    plan.push_back({storage::kAdapterPrefix + name, input.dtype, tensor.shape});
  storage::SafetensorsWriter writer((output / storage::kAdapterWeights).string(), plan, {{"format", "pt"}});
  for (const auto& [name, tensor] : checkpoint.manifest().tensors)
    writer.add(checkpoint.tensor(name, kWeight).to(input.dtype));
  return {
      {storage::kAdapterWeights, writer.finish()},
      write_summed(output, storage::kAdapterConfig, checkpoint.manifest().client_state.at("adapter").dump(2) + "\n")};
}

// What tessera train notes of the config.json of what it trains, where that differs from its model folder's: the class,
// as the weights may be of a model with a head where the folder's are of the bare encoder, and names of labels.
struct ConfigChanges {
  nlohmann::json architecture = nullptr;
  nlohmann::json values = nlohmann::json::object();
};

ShardFile write_config(const fs::path& model, const fs::path& output, at::ScalarType dtype,
                       const ConfigChanges& changes) {
  read_json_file(model / "config.json");  // throws where it is none
  auto config = nlohmann::ordered_json::parse(read_input_file(model / "config.json"));
  if (!changes.architecture.is_null()) config["architectures"] = {changes.architecture};
  if (changes.values.is_object()) config.update(nlohmann::ordered_json(changes.values));
  const std::string name = dtype == at::kFloat ? "float32" : dtype == at::kBFloat16 ? "bfloat16" : "float16";
  config.erase("torch_dtype");
  config["dtype"] = name;
  return write_summed(output, "config.json", config.dump(2) + "\n");
}

// `chat_template`: instead of the folder's, by which tessera train wrote the conversations; null: none.
void copy_tokenizer(const fs::path& model, const fs::path& output, const nlohmann::json& chat_template,
                    std::vector<ShardFile>& files) {
  for (const std::string name : kTokenizerFiles) {
    const bool is_replaced = chat_template.is_string() && name == kChatTemplate;
    if (!is_replaced && fs::exists(model / name)) {
      files.push_back(write_summed(output, name, read_input_file(model / name)));
    }
  }
  if (chat_template.is_string()) files.push_back(write_summed(output, kChatTemplate, chat_template.get<std::string>()));
}

// Has `write` fill a folder aside, which then takes the place of an earlier export.
void publish_export(const fs::path& output, const std::function<void(const fs::path& aside)>& write) {
  refuse_to_remove(output);
  storage::create_aside(output);
  try {
    write(storage::aside_of(output));
    storage::publish(output);
  } catch (...) {
    storage::abandon(output);
    throw;
  }
}

}  // namespace

void export_hf(const ExportInput& input) {
  refuse_to_remove(input.output);
  CheckpointReader checkpoint(input.checkpoint);
  const Manifest& manifest = checkpoint.manifest();
  const fs::path model = input.weights_only ? fs::path() : model_folder(input, manifest);
  publish_export(input.output, [&](const fs::path& aside) {
    if (input.weights_only) {
      write_weights(checkpoint, aside, input);
      return;
    }
    const bool is_adapter = manifest.client_state.contains("adapter");
    std::vector<ShardFile> files =
        is_adapter ? write_adapter(checkpoint, aside, input) : write_weights(checkpoint, aside, input);
    const ConfigChanges changes{.architecture = manifest.client_state.value("architecture", nlohmann::json()),
                                .values = manifest.client_state.value("config", nlohmann::json::object())};
    if (!is_adapter) files.push_back(write_config(model, aside, input.dtype, changes));
    copy_tokenizer(model, aside, manifest.client_state.value("chat_template", nlohmann::json()), files);
    write_export_sums(aside, files);
  });
}

void export_weights(const WeightsToExport& weights) {
  publish_export(weights.output, [&](const fs::path& aside) {
    std::vector<storage::PlannedTensor> plan;
    for (const auto& [name, shape] : weights.shapes) plan.push_back({name, weights.dtype, shape});
    std::vector<ShardFile> files = write_weight_files(aside, plan, weights.read, {});
    files.push_back(write_config(weights.model, aside, weights.dtype, {}));
    copy_tokenizer(weights.model, aside, nullptr, files);
    write_export_sums(aside, files);
  });
}

}  // namespace tessera::checkpoint
