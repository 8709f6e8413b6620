// tessera checkpoint: work on saved checkpoints.
#include "tessera/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <set>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/export_sums.h"
#include "tessera/checkpoint/inspect.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/checkpoint/weight_files.h"
#include "tessera/cli/commands.h"
#include "tessera/storage/dtype.h"
#include "tessera/storage/folder_lock.h"
#include "tessera/train/merge_adapter.h"
#include "tessera/train/model_of_checkpoint.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpointHelp = "A checkpoint, or a folder of checkpoints";

struct ExportOptions {
  std::string checkpoint;
  std::string output;
  std::string model;
  std::string dtype = "fp32";
  std::string format = "safetensors";
  std::string max_shard_size = "5GB";
  bool weights_only = false;
};

at::ScalarType dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  throw Error(ErrorKind::kUsage, {"there is no dtype '" + name + "'", "--dtype", "use fp32, bf16 or fp16"});
}

checkpoint::WeightFormat format_of(const std::string& name) {
  if (name == "safetensors") return checkpoint::WeightFormat::kSafetensors;
  if (name == "bin") return checkpoint::WeightFormat::kStateDict;
  throw Error(ErrorKind::kUsage, {"there is no format '" + name + "'", "--format", "use safetensors or bin"});
}

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

void require_name(const std::string& folder, const char* option) {
  if (!folder.empty()) return;
  throw Error(ErrorKind::kUsage, {"the folder to write has no name", option, "name one that does not exist yet"});
}

// It may be empty: of checkpoints that are still to come, or were removed.
void require_folder_of_checkpoints(const fs::path& folder) {
  const auto refuse = [&](const char* what, const std::string& fix) {
    throw Error(ErrorKind::kUsage, {what, folder.string(), fix});
  };
  if (!fs::is_directory(folder)) refuse("no such folder", "name a folder of checkpoints");
  if (fs::exists(folder / "manifest.json")) refuse("this is a checkpoint itself", "name the folder that it lies in");
  const fs::path inside = folder / "checkpoints";  // of a run's output
  if (checkpoint::tags_of(folder).empty() && !checkpoint::tags_of(inside).empty()) {
    refuse("this is no folder of checkpoints", "they are in " + inside.string());
  }
}

std::string step_text(const checkpoint::Manifest& manifest) {
  const auto step = manifest.engine_state.find("global_steps");
  return step == manifest.engine_state.end() ? "?" : step->dump();
}

// One line a checkpoint, the newest first.
void list_checkpoints(const fs::path& folder) {
  require_folder_of_checkpoints(folder);
  const std::string latest = checkpoint::read_latest(folder), best = checkpoint::read_best(folder);
  const auto tags = checkpoint::tags_of(folder);
  if (tags.empty()) print("no checkpoints\n");
  for (const std::string& tag : tags) {
    const std::string mark = std::string(tag == best ? "best " : "") + (tag == latest ? "latest" : "");
    try {
      const checkpoint::Manifest manifest = checkpoint::read_manifest(folder / tag);
      print(fmt::format("{:<24} step {:>8} {:>10} {:>3} file{} {}\n", tag, step_text(manifest),
                        format_bytes(checkpoint::total_bytes(manifest)), manifest.files.size(),
                        manifest.files.size() == 1 ? " " : "s", mark));
    } catch (const Error& error) {
      print(fmt::format("{:<24} DAMAGED: {} {}\n", tag, error.report().what, mark));
    }
  }
}

void show_checkpoint(const fs::path& path) {
  checkpoint::CheckpointReader reader(path);
  const checkpoint::Manifest& manifest = reader.manifest();
  print(fmt::format("{}\n  step {}, saved by {}{}{}\n", reader.folder().string(), step_text(manifest),
                    count_of(manifest.world_size, "rank"), manifest.trainable_only ? ", trainable parameters only" : "",
                    manifest.node_local ? ", each host's files on its own disk" : ""));
  print(fmt::format("  engine state  {}\n  client state  {}\n", manifest.engine_state.dump(),
                    manifest.client_state.dump()));
  for (const auto& file : manifest.files) print(fmt::format("  {}  {}\n", file.name, format_bytes(file.sum.bytes)));
  print("\n");
  for (const auto& [name, tensor] : manifest.tensors) {
    std::vector<std::string> kinds;
    for (const std::string& kind : tensor.kinds) {
      kinds.push_back(fmt::format("{} {}", kind, storage::safetensors_name(reader.source().dtype(name, kind))));
    }
    std::vector<std::string> parts;
    for (const checkpoint::Piece& piece : tensor.pieces) {
      parts.push_back(tensor.pieces.size() == 1
                          ? fmt::format("rank {}", piece.file)
                          : fmt::format("rank {}: {}+{}", piece.file, piece.at.run.begin, piece.at.run.numel()));
    }
    print(fmt::format("{} [{}]  {}  {}\n", name, fmt::join(tensor.shape, ", "), fmt::join(kinds, ", "),
                      fmt::join(parts, ", ")));
  }
  for (const auto& [alias, name] : manifest.aliases) print(fmt::format("{} = {}\n", alias, name));
}

// The one that it is, or those in it: what `latest` names first, then the newest.
std::vector<fs::path> checkpoints_at(const fs::path& path) {
  std::vector<fs::path> found{checkpoint::resolve(path)};
  if (found.front() == path) return found;
  for (const std::string& tag : checkpoint::tags_of(path)) {
    if (path / tag != found.front()) found.push_back(path / tag);
  }
  return found;
}

void verify_checkpoints(const fs::path& path) {
  const bool exported = checkpoint::is_export(path);
  std::vector<std::string> damage, damaged;
  for (const fs::path& folder : exported ? std::vector{path} : checkpoints_at(path)) {
    const auto findings = exported ? checkpoint::verify_export(folder) : checkpoint::verify(folder);
    if (findings.empty()) print(fmt::format("{} is intact\n", folder.string()));
    if (!findings.empty()) damaged.push_back(folder.string());
    damage.insert(damage.end(), findings.begin(), findings.end());
  }
  if (damage.empty()) return;
  throw Error(ErrorKind::kData,
              {fmt::format("{}", fmt::join(damage, "\n  and ")), fmt::format("{}", fmt::join(damaged, ", ")),
               exported ? "export the checkpoint again" : "resume from an earlier checkpoint in the same folder"});
}

// Returns the exit code: 0 when nothing differs, 1 otherwise, as diff does.
int diff_checkpoints(const fs::path& a, const fs::path& b) {
  const auto differences = checkpoint::compare(a, b);
  for (const auto& each : differences) {
    print(fmt::format("{} {}: {}", each.kind, each.tensor, each.what));
    if (each.elements > 0) {
      print(fmt::format(", {}, by at most {:.3g}", count_of(each.elements, "element"), each.largest));
    }
    print("\n");
  }
  if (differences.empty()) print("no differences\n");
  return differences.empty() ? 0 : 1;
}

void prune_checkpoints(const fs::path& folder, const checkpoint::Retention& retention) {
  require_folder_of_checkpoints(folder);
  const storage::FolderLock lock(folder);
  const std::vector<std::string> removed = checkpoint::prune(folder, retention);
  for (const std::string& tag : removed) print(fmt::format("removed {}\n", tag));
  if (removed.empty()) print("nothing to remove\n");
}

void add_export(CLI::App& command) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* exporting = command.add_subcommand("export", "Export a checkpoint as a Hugging Face folder");
  exporting->add_option("DIR", options->checkpoint, kCheckpointHelp)->required();
  exporting->add_option("--to", options->output, "Folder to write")->required();
  exporting->add_option("--model", options->model,
                        "Folder that training started from, for config.json and tokenizer; known from the checkpoint "
                        "when tessera train made it");
  exporting->add_option("--dtype", options->dtype, "Dtype of the weights: fp32, bf16 or fp16")->capture_default_str();
  exporting->add_option("--format", options->format, "File format: safetensors, or bin (pytorch_model.bin)")
      ->capture_default_str();
  exporting
      ->add_option("--max-shard-size", options->max_shard_size, "Largest size of one weight file, e.g. 5GB or 200MB")
      ->capture_default_str();
  exporting->add_flag(
      "--weights-only", options->weights_only,
      "Only the weights, without config.json and tokenizer; in fp32 the same as DeepSpeed's zero_to_fp32 writes");
  exporting->callback([options] {
    require_name(options->output, "--to");
    if (!options->model.empty() && !options->weights_only) {
      train::require_model_of(options->checkpoint, options->model);
    }
    checkpoint::export_hf(
        {.checkpoint = options->checkpoint,
         .model = options->model,
         .output = options->output,
         .dtype = dtype_of(options->dtype),
         .files = {.format = format_of(options->format),
                   .max_shard_bytes = checkpoint::shard_bytes(options->max_shard_size, "--max-shard-size")},
         .weights_only = options->weights_only});
    log_info("wrote {}", options->output);
  });
}

void add_merge(CLI::App& command) {
  auto input = std::make_shared<train::MergeInput>();
  auto dtype = std::make_shared<std::string>("fp32");
  CLI::App* merging =
      command.add_subcommand("merge", "Merge an adapter (LoRA, DoRA) into the model that it was trained for");
  merging->add_option("ADAPTER", input->adapter, "A folder with an adapter, in PEFT's format")->required();
  merging->add_option("--to", input->output, "Folder to write, a Hugging Face folder")->required();
  merging->add_option("--model", input->model, "Folder of the model; without it, where the adapter says that it lies");
  merging->add_option("--dtype", *dtype, "Dtype of the weights: fp32, bf16 or fp16")->capture_default_str();
  merging->callback([input, dtype] {
    require_name(input->output, "--to");
    input->dtype = dtype_of(*dtype);
    train::merge_adapter(*input);
    log_info("wrote {}: the adapter merged into the model's weights in full precision", input->output);
  });
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& code) {
  CLI::App* command = app.add_subcommand("checkpoint", "List, check, compare, export, merge and remove checkpoints");
  command->require_subcommand(1);
  const auto path = [](CLI::App* to, const char* name, const char* help) {
    auto value = std::make_shared<std::string>();
    to->add_option(name, *value, help)->required();
    return value;
  };
  CLI::App* listing = command->add_subcommand("ls", "List a folder's checkpoints, newest first");
  listing->callback([folder = path(listing, "DIR", "Folder of checkpoints")] { list_checkpoints(*folder); });

  CLI::App* showing = command->add_subcommand(
      "show", "Show a checkpoint's tensors, dtypes, sizes, which rank holds what, and its state");
  showing->callback([folder = path(showing, "DIR", kCheckpointHelp)] { show_checkpoint(*folder); });

  CLI::App* verifying = command->add_subcommand(
      "verify", "Check every byte of checkpoints, or of an exported folder, against its checksum");
  verifying->callback(
      [folder = path(verifying, "DIR", "A checkpoint, a folder of checkpoints (all of them), or an exported folder")] {
        verify_checkpoints(*folder);
      });

  CLI::App* diffing = command->add_subcommand("diff", "Show which tensors of two checkpoints differ, and by how much");
  const auto a = path(diffing, "A", kCheckpointHelp), b = path(diffing, "B", kCheckpointHelp);
  diffing->callback([a, b, &code] { code = diff_checkpoints(*a, *b); });

  auto retention = std::make_shared<checkpoint::Retention>();
  CLI::App* pruning = command->add_subcommand("prune", "Remove old checkpoints and leftovers of interrupted saves");
  const auto folder = path(pruning, "DIR", "Folder of checkpoints");
  pruning->add_option("--keep-last", retention->keep_last, "Number of newest checkpoints to keep; 0: all")
      ->required()
      ->check(CLI::NonNegativeNumber);
  pruning->add_option("--keep-every", retention->keep_every, "Also keep checkpoints whose step is a multiple of this")
      ->check(CLI::NonNegativeNumber);
  pruning->callback([folder, retention] { prune_checkpoints(*folder, *retention); });

  add_export(*command);
  add_merge(*command);
}

}  // namespace tessera::cli
