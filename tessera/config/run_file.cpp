#include "tessera/config/run_file.h"

#include <fmt/format.h>

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/config/hjson.h"
#include "tessera/config/key_check.h"
#include "tessera/config/overrides.h"
#include "tessera/config/yaml_file.h"

namespace tessera::config {
namespace {

bool is_under_deepspeed(const std::string& override_text) { return override_text.rfind("deepspeed.", 0) == 0; }

// A path in the file is relative to its folder, one from the command line to the current folder.
class Paths {
 public:
  Paths(const std::string& run_file, const Document& document)
      : folder_(std::filesystem::path(run_file).parent_path()), document_(document) {}

  std::string resolve(const std::string& path, const Pointer& key) const {
    if (path.empty()) {
      throw Error(ErrorKind::kConfig,
                  {fmt::format("'{}' is empty", dotted(key)), document_.place(key).text(), "write a path"});
    }
    const bool from_command_line = document_.place(key).line == 0;
    return from_command_line ? path : (folder_ / path).lexically_normal().string();
  }

 private:
  std::filesystem::path folder_;
  const Document& document_;
};

Document deepspeed_of(const Document& document, const Paths& paths) {
  const Pointer key = pointer_to("deepspeed");
  const Json& value = document.value.at(key);
  if (value.is_object()) return document.part(key);
  if (!value.is_string()) {
    throw Error(ErrorKind::kConfig, {fmt::format("'deepspeed' is {}", value.dump()), document.place(key).text(),
                                     "write the name of a ds_config file, or the object itself"});
  }
  const std::string path = paths.resolve(value.get<std::string>(), key);
  std::error_code unreachable;
  if (!std::filesystem::exists(path, unreachable)) {
    const std::string reason = unreachable ? fmt::format(" ({})", unreachable.message()) : "";
    throw Error(ErrorKind::kConfig,
                {fmt::format("'deepspeed' names a file that does not exist{}: {}", reason, path),
                 document.place(key).text(), "fix the path; it is relative to the run file's folder"});
  }
  return parse_hjson(read_text(path), path);
}

const Json& value_of(const RunFile& run, std::string_view path) {
  for (const ResolvedKey& key : run.keys) {
    if (key.path == path) return key.value;
  }
  TESSERA_INVARIANT(!"every key of the run file's table has a row");
}

std::vector<std::string> files_of(const RunFile& run, const std::string& key, const Paths& paths) {
  std::vector<std::string> files;
  const Json& list = value_of(run, key);
  for (const Json& file : list) files.push_back(paths.resolve(file.get<std::string>(), pointer_to(key)));
  return files;
}

// A file's path is relative, as others are; a name is a built-in template's.
std::string chat_template_of(const RunFile& run, const Paths& paths) {
  const auto choice = value_of(run, "data.chat_template").get<std::string>();
  const bool is_file = choice.find('/') != std::string::npos || choice.ends_with(".jinja");
  return is_file ? paths.resolve(choice, pointer_to("data.chat_template")) : choice;
}

void read_quantization(RunFile& run, const Document& document) {
  if (value_of(run, "model.quantization") == "none") return;
  if (run.adapter.rank == 0 && run.adapter.path.empty()) {
    throw Error(ErrorKind::kConfig,
                {"'model.quantization' is nf4, and quantized weights cannot be trained: there is no adapter to train",
                 document.place(pointer_to("model.quantization")).text(),
                 "add an adapter (adapter.rank: 16), or leave model.quantization out"});
  }
  run.model.quantization = RunFile::Model::Quantization::kNf4;
}

void read_adapter(RunFile& run, const Paths& paths) {
  RunFile::Adapter& adapter = run.adapter;
  adapter.rank = value_of(run, "adapter.rank").get<int64_t>();
  const Json& alpha = value_of(run, "adapter.alpha");
  adapter.alpha = alpha.is_null() ? 2 * static_cast<double>(adapter.rank) : alpha.get<double>();
  adapter.dropout = value_of(run, "adapter.dropout").get<double>();
  adapter.use_rslora = value_of(run, "adapter.use_rslora").get<bool>();
  adapter.use_dora = value_of(run, "adapter.use_dora").get<bool>();
  adapter.targets = value_of(run, "adapter.targets").get<std::vector<std::string>>();
  adapter.modules_to_save = value_of(run, "adapter.modules_to_save").get<std::vector<std::string>>();
  if (const Json& path = value_of(run, "adapter.path"); !path.is_null()) {
    adapter.path = paths.resolve(path.get<std::string>(), pointer_to("adapter.path"));
  }
}

RunFile::Dpo dpo_of(const RunFile& run) {
  constexpr std::pair<const char*, RunFile::Dpo::Loss> kLosses[] = {{"sigmoid", RunFile::Dpo::Loss::kSigmoid},
                                                                    {"hinge", RunFile::Dpo::Loss::kHinge},
                                                                    {"ipo", RunFile::Dpo::Loss::kIpo}};
  RunFile::Dpo dpo{.beta = value_of(run, "dpo.beta").get<double>(),
                   .label_smoothing = value_of(run, "dpo.label_smoothing").get<double>()};
  for (const auto& [name, loss] : kLosses) {
    if (value_of(run, "dpo.loss") == name) dpo.loss = loss;
  }
  return dpo;
}

// One for each entry of data.train.
void check_weights(const Document& document, KeyCheck& check) {
  const Json& data = document.value.contains("data") ? document.value["data"] : Json();
  if (!data.is_object() || !data.contains("weights") || !data.contains("train")) return;
  const Json &weights = data["weights"], &train = data["train"];
  const size_t entries = train.is_array() ? train.size() : 1;
  if (!weights.is_array() || weights.empty() || weights.size() == entries) return;
  check.problems.add(fmt::format("'data.weights' has {}, but 'data.train' has {}", weights.size(), entries),
                     document.place(pointer_to("data.weights")), "write one weight for each entry of data.train");
}

}  // namespace

RunFile load_run_file(const std::string& path, const std::vector<std::string>& overrides) {
  Document document = load_document(path);
  if (!document.value.is_object()) {
    throw Error(ErrorKind::kConfig, {"a run file must be a map of keys", path, "start it with 'model: {path: …}'"});
  }
  // Those under `deepspeed` wait until its file is read.
  std::vector<std::string> own, of_deepspeed;
  for (const std::string& text : overrides) {
    if (is_under_deepspeed(text)) {
      of_deepspeed.push_back(text.substr(std::string("deepspeed.").size()));
    } else {
      own.push_back(text);
    }
  }
  apply_overrides(document, own);

  KeyCheck check{.table = run_file_keys()};
  check_keys(document, check);
  if (document.value.contains(pointer_to("data.train")) && document.value["data"]["train"] == Json::array()) {
    check.problems.add("'data.train' is empty", document.place(pointer_to("data.train")), "name at least one file");
  }
  const auto given = [&](const char* key) { return document.value.contains(pointer_to(key)); };
  if (given("data.eval_share") && given("data.eval") && document.value["data"]["eval"] != Json::array() &&
      document.value["data"]["eval_share"] != 0) {
    check.problems.add("'data.eval_share' holds out samples of data.train, but 'data.eval' names what to evaluate on",
                       document.place(pointer_to("data.eval_share")), "leave one of them out");
  }
  check_weights(document, check);
  if (given("data.weights") && given("data.eval_share") && document.value["data"]["weights"] != Json::array() &&
      document.value["data"]["eval_share"] != 0) {
    check.problems.add("'data.eval_share' holds out samples of data.train, which 'data.weights' mixes anew each epoch",
                       document.place(pointer_to("data.eval_share")), "name held-out data with data.eval");
  }
  check.problems.raise();

  RunFile run;
  run.name = path;
  run.keys = resolve_keys(document, check);
  const Paths paths(path, document);
  const auto text = [&](const char* key) { return value_of(run, key).get<std::string>(); };
  const auto number = [&](const char* key) { return value_of(run, key).get<int64_t>(); };

  run.model.path = paths.resolve(text("model.path"), pointer_to("model.path"));
  run.model.init = text("model.init") == "random" ? RunFile::Model::Init::kRandom : RunFile::Model::Init::kPretrained;
  const auto number_or_null = [&](const char* key) {
    const Json& value = value_of(run, key);
    return value.is_null() ? std::nullopt : std::optional(value.get<double>());
  };
  run.model.dropout = number_or_null("model.dropout");
  run.model.router_balance_loss = number_or_null("model.router_balance_loss");
  run.model.router_z_loss = number_or_null("model.router_z_loss");
  run.model.freeze = value_of(run, "model.freeze").get<std::vector<std::string>>();
  read_adapter(run, paths);
  read_quantization(run, document);
  const bool own_tokenizer = !value_of(run, "tokenizer").is_null();
  run.tokenizer = own_tokenizer ? paths.resolve(text("tokenizer"), pointer_to("tokenizer")) : run.model.path;
  run.task = text("task");

  run.data.train = files_of(run, "data.train", paths);
  run.data.eval = files_of(run, "data.eval", paths);
  run.data.eval_share = value_of(run, "data.eval_share").get<double>();
  run.data.weights = value_of(run, "data.weights").get<std::vector<double>>();
  run.data.cache = text("data.cache");
  if (run.data.cache != "auto" && run.data.cache != "none") {
    run.data.cache = paths.resolve(run.data.cache, pointer_to("data.cache"));
  }
  run.data.text_column = text("data.text_column");
  run.data.max_length = number("data.max_length");
  run.data.padding =
      text("data.padding") == "longest" ? RunFile::Data::Padding::kLongest : RunFile::Data::Padding::kMaxLength;
  run.data.long_text =
      text("data.long_text") == "chunk" ? RunFile::Data::LongText::kChunk : RunFile::Data::LongText::kTruncate;
  constexpr std::pair<const char*, RunFile::Data::Packing> kPackings[] = {{"auto", RunFile::Data::Packing::kAuto},
                                                                          {"none", RunFile::Data::Packing::kNone},
                                                                          {"fill", RunFile::Data::Packing::kFill},
                                                                          {"fit", RunFile::Data::Packing::kFit}};
  for (const auto& [name, packing] : kPackings) {
    if (text("data.packing") == name) run.data.packing = packing;
  }
  run.data.source_column = text("data.source_column");
  run.data.target_column = text("data.target_column");
  run.data.source_prefix = text("data.source_prefix");
  run.data.max_target_length = number("data.max_target_length");
  if (const Json& pair = value_of(run, "data.text_pair_column"); !pair.is_null()) {
    run.data.text_pair_column = pair.get<std::string>();
  }
  run.data.label_column = text("data.label_column");
  run.data.labels = value_of(run, "data.labels").get<std::vector<std::string>>();
  if (!value_of(run, "data.chat_template").is_null()) run.data.chat_template = chat_template_of(run, paths);
  run.data.drop_empty = value_of(run, "data.drop_empty").get<bool>();
  run.data.mlm_probability = value_of(run, "data.mlm_probability").get<double>();

  run.dpo = dpo_of(run);
  run.parallel.tensor = number("parallel.tensor");
  run.parallel.context = number("parallel.context");
  run.parallel.context_attention = text("parallel.context_attention");
  run.parallel.expert = number("parallel.expert");
  run.parallel.replicate = number("parallel.replicate");
  run.parallel.pipeline = number("parallel.pipeline");
  run.parallel.schedule = text("parallel.schedule");
  run.parallel.stages_per_rank = number("parallel.stages_per_rank");
  run.parallel.partition = text("parallel.partition");
  run.parallel.stage_sizes = value_of(run, "parallel.stage_sizes").get<std::vector<int64_t>>();
  run.training.epochs = value_of(run, "training.epochs").get<double>();
  run.training.max_steps = number("training.max_steps");
  run.training.seed = number("training.seed");
  run.training.eval_steps = number("training.eval_steps");
  run.training.eval_samples = number("training.eval_samples");
  run.training.eval_at_start = value_of(run, "training.eval_at_start").get<bool>();
  run.training.eval_bleu = number("training.eval_bleu");
  run.training.save_steps = number("training.save_steps");
  run.training.keep_last = number("training.keep_last");
  run.training.keep_every = number("training.keep_every");
  run.training.keep_best = value_of(run, "training.keep_best").get<bool>();
  if (const Json& metric = value_of(run, "training.best_by"); !metric.is_null()) {
    run.training.best_by = metric.get<std::string>();
  }
  run.training.patience = number("training.patience");
  run.training.max_bad_steps = number("training.max_bad_steps");
  run.training.async_save = value_of(run, "training.async_save").get<bool>();
  run.training.device = text("training.device");
  run.training.memory_check = value_of(run, "training.memory_check").get<bool>();
  run.training.activation_checkpointing = value_of(run, "training.activation_checkpointing").get<bool>();

  // A default output folder lies beside the run file, as a written one does.
  const bool output_given = document.value.contains(pointer_to("output"));
  run.output = output_given ? paths.resolve(text("output"), pointer_to("output"))
                            : (std::filesystem::path(path).parent_path() / text("output")).string();

  run.monitors = value_of(run, "monitors").get<std::vector<std::string>>();

  run.deepspeed = deepspeed_of(document, paths);
  apply_overrides(run.deepspeed, of_deepspeed, "deepspeed.");
  return run;
}

DsConfig resolve_ds_config(const RunFile& run, const DsConfigInput& input) {
  return parse_ds_config(run.deepspeed, input);
}

}  // namespace tessera::config
