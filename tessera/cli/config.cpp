// tessera config check FILE    the resolved configuration, key by key, with what is wrong or not supported
// tessera config keys          the table of keys
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/cli/commands.h"
#include "tessera/config/hjson.h"
#include "tessera/config/overrides.h"
#include "tessera/config/print.h"
#include "tessera/config/run_file.h"
#include "tessera/config/yaml_file.h"
#include "tessera/train/run.h"

namespace tessera::cli {
namespace {

using namespace tessera::config;

struct CheckOptions {
  std::string file;
  int64_t world_size = 1;
  std::vector<std::string> overrides;
  bool all = false;
  bool json = false;
};

bool is_run_file(const Document& document) {
  if (!document.value.is_object()) return is_yaml_name(document.name);
  for (const char* key : {"model", "data", "training", "task", "deepspeed"}) {
    if (document.value.contains(key)) return true;
  }
  return false;
}

void print_text(const std::optional<RunFile>& run, const DsConfig& ds, const std::vector<NotYet>& missing, bool all) {
  const Shown shown = all ? Shown::kAll : Shown::kGiven;
  if (run) fmt::print("# {}\n{}\n", run->name, print_resolved(run->keys, shown));
  fmt::print("# {}\n{}", ds.name, print_resolved(ds.keys, shown));
  fmt::print("\n{} per step = micro batch {} x accumulation {} x {}\n", count_of(ds.batch.global, "sample"),
             ds.batch.micro, ds.batch.accumulation,
             count_of(ds.batch.global / ds.batch.micro / ds.batch.accumulation, "data-parallel rank"));
  if (!all) fmt::print("all other keys have their defaults; --all shows them\n");
  if (missing.empty()) return;
  fmt::print("\n{} cannot be used yet:\n", count_of(static_cast<int64_t>(missing.size()), "key"));
  for (const NotYet& key : missing) fmt::print("  {}: {}; {}\n", key.where, key.what, key.fix);
}

void print_json(const std::optional<RunFile>& run, const DsConfig& ds, const std::vector<NotYet>& missing) {
  Json result = {
      {"ds_config", resolved_as_json(ds.keys)},
      {"batch", {{"global", ds.batch.global}, {"micro", ds.batch.micro}, {"accumulation", ds.batch.accumulation}}},
      {"warnings", ds.warnings},
      {"not_yet", Json::array()}};
  if (run) result["run_file"] = resolved_as_json(run->keys);
  for (const NotYet& key : missing) {
    result["not_yet"].push_back({{"key", key.path}, {"what", key.what}, {"where", key.where}, {"fix", key.fix}});
  }
  fmt::print("{}\n", result.dump(2));
}

int check(const CheckOptions& options) {
  Document document = load_document(options.file);
  DsConfigInput input{.data_parallel_size = options.world_size,
                      .auto_values = {.leave_unknown = true},
                      .may_lower_micro_batch = is_run_file(document)};
  std::optional<RunFile> run;
  DsConfig ds;
  if (is_run_file(document)) {
    run = load_run_file(options.file, options.overrides);
    input.data_parallel_size = train::readers_of(*run, options.world_size);
    ds = resolve_ds_config(*run, input);
    if (not_yet_supported(ds).empty()) train::check_run(*run, options.world_size);  // opens what it names
  } else {
    apply_overrides(document, options.overrides);
    ds = parse_ds_config(document, input);
  }
  const std::vector<NotYet> missing = not_yet_supported(ds);
  if (options.json) {
    print_json(run, ds, missing);
  } else {
    for (const std::string& warning : ds.warnings) log_warning("{}", warning);
    print_text(run, ds, missing, options.all);
  }
  return missing.empty() ? 0 : exit_code(ErrorKind::kConfig);
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("config", "Explain and check configurations");
  command->require_subcommand(1);

  auto options = std::make_shared<CheckOptions>();
  CLI::App* check_command = command->add_subcommand("check", "Print a ds_config or run file with every value resolved");
  check_command->add_option("file", options->file, "A ds_config (JSON) or a run file (YAML or JSON)")->required();
  check_command
      ->add_option("--world-size", options->world_size,
                   "Number of ranks; of a ds_config, of those with data of their own")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  check_command->add_option("--set", options->overrides, "Override a key, e.g. zero_optimization.stage=3 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  check_command->add_flag("--all", options->all, "Show every key, including those at their defaults");
  check_command->add_flag("--json", options->json, "Print every key as JSON");
  check_command->callback([options, &exit_code] { exit_code = check(*options); });

  auto markdown = std::make_shared<bool>(false);
  CLI::App* keys_command = command->add_subcommand("keys", "List every key with its type, default and status");
  keys_command->add_flag("--markdown", *markdown, "Print docs/config.md");
  keys_command->callback([markdown] {
    const std::string text =
        *markdown ? config_page() : print_key_table(ds_config_keys()) + "\n" + print_key_table(run_file_keys());
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace tessera::cli
