#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
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
#include "tessera/storage/safetensors.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer_config.json", "vocab.txt",
                                           "special_tokens_map.json", "added_tokens.json"};

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
        name == "config.json" || name == kExportSums || is_weight_file(name) ||
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

// The weights may be of a model with a head where the original config names the bare encoder.
ShardFile write_config(const fs::path& model, const fs::path& output, at::ScalarType dtype, const Manifest& manifest) {
  read_json_file(model / "config.json");  // throws where it is none
  auto config = nlohmann::ordered_json::parse(read_input_file(model / "config.json"));
  if (manifest.client_state.contains("architecture")) {
    config["architectures"] = {manifest.client_state["architecture"]};
  }
  const std::string name = dtype == at::kFloat ? "float32" : dtype == at::kBFloat16 ? "bfloat16" : "float16";
  config.erase("torch_dtype");
  config["dtype"] = name;
  return write_summed(output, "config.json", config.dump(2) + "\n");
}

}  // namespace

void export_hf(const ExportInput& input) {
  refuse_to_remove(input.output);
  CheckpointReader checkpoint(input.checkpoint);
  const Manifest& manifest = checkpoint.manifest();
  const fs::path model = input.weights_only ? fs::path() : model_folder(input, manifest);
  storage::create_aside(input.output);
  try {
    const fs::path aside = storage::aside_of(input.output);
    std::vector<ShardFile> files = write_weights(checkpoint, aside, input);
    if (!input.weights_only) files.push_back(write_config(model, aside, input.dtype, manifest));
    for (const char* const name : kTokenizerFiles) {
      if (!input.weights_only && fs::exists(model / name)) {
        files.push_back(write_summed(aside, name, read_input_file(model / name)));
      }
    }
    if (!input.weights_only) write_export_sums(aside, files);
    storage::publish(input.output);
  } catch (...) {
    storage::abandon(input.output);
    throw;
  }
}

}  // namespace tessera::checkpoint
