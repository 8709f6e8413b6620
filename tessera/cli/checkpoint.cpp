// tessera checkpoint: work on saved checkpoints.
#include <memory>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/export_hf.h"
#include "tessera/cli/commands.h"

namespace tessera::cli {
namespace {

struct ExportOptions {
  std::string checkpoint;
  std::string output;
  std::string model;
  std::string dtype = "fp32";
};

at::ScalarType dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  throw Error(ErrorKind::kUsage, {"there is no dtype '" + name + "'", "--dtype", "use fp32, bf16 or fp16"});
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("checkpoint", "Export checkpoints");
  command->require_subcommand(1);
  auto options = std::make_shared<ExportOptions>();
  CLI::App* exporting = command->add_subcommand("export", "Write a Hugging Face folder");
  exporting->add_option("DIR", options->checkpoint, "A checkpoint, or the folder that holds checkpoints")->required();
  exporting->add_option("--to", options->output, "The folder to write")->required();
  exporting->add_option("--model", options->model,
                        "The folder that training began from, for config.json and tokenizer; known from the checkpoint "
                        "when tessera train made it");
  exporting->add_option("--dtype", options->dtype, "fp32, bf16 or fp16")->capture_default_str();
  exporting->callback([options] {
    checkpoint::export_hf({.checkpoint = options->checkpoint,
                           .model = options->model,
                           .output = options->output,
                           .dtype = dtype_of(options->dtype)});
    log_info("wrote {}", options->output);
  });
}

}  // namespace tessera::cli
