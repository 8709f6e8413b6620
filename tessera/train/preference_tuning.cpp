// The task dpo: of two answers to a prompt the model is to prefer the one that people did (Rafailov et al. 2023).
//
// The reference is the model that training begins with. Where that is the frozen model without its new adapter, each
// step runs it once more so; else its numbers are computed before the first step (reference_log_probs.h).
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/hash.h"
#include "tessera/config/run_file.h"
#include "tessera/data/collators.h"
#include "tessera/data/preference_collator.h"
#include "tessera/data/preference_dataset.h"
#include "tessera/data/reader.h"
#include "tessera/train/preference_loss.h"
#include "tessera/train/reference_log_probs.h"
#include "tessera/train/run_facts.h"
#include "tessera/train/run_setup.h"
#include "tessera/train/tasks.h"
#include "tessera/train/text_data.h"

namespace tessera::train {
namespace {

uint64_t hash_of_answers(const data::TokenColumn& answers, uint64_t state) {
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto tokens = answers.sample(i);
    size_t prompt = 0;
    while (prompt < tokens.size() && !answers.is_target(i, static_cast<int64_t>(prompt))) ++prompt;
    state = fnv1a(fmt::format("{} {} ", prompt, tokens.size()), state);
    state = fnv1a({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()}, state);
  }
  return state;
}

class PreferenceData final : public TaskData {
 public:
  explicit PreferenceData(const DataSource& source)
      : key_(source.key),
        max_length_(source.run.data.max_length),
        dataset_(source.tokenizer, {.files = data::expand_files(source.paths),
                                    .tokenizer_folder = source.run.tokenizer,
                                    .chat_template = source.run.data.chat_template,
                                    .max_length = source.run.data.max_length,
                                    .cache = token_cache_of(source),
                                    .name = source.key}),
        collator_(dataset_, data::padding_of(source.run.data, source.tokenizer)),
        entry_ends_(ends_of_entries(source.paths, dataset_.file_ends())) {
    require_samples(source, dataset_.size());
  }

  data::Samples<data::Batch> samples() const override { return collator_.samples(); }
  std::vector<size_t> entry_ends() const override { return entry_ends_; }
  int64_t size() const { return static_cast<int64_t>(dataset_.size()); }
  void number_from(int64_t first) { collator_.number_from(first); }
  uint64_t hash(uint64_t state) const {
    return hash_of_answers(dataset_.rejected(), hash_of_answers(dataset_.chosen(), state));
  }

  std::string description() const override {
    const data::PreferenceCounts& counts = dataset_.counts();
    std::string text =
        fmt::format("{}: {}; {}, {} per epoch, of which {} are of answers", key_, count_of(counts.rows, "row"),
                    count_of(size(), "pair"),
                    count_of(dataset_.chosen().total_tokens() + dataset_.rejected().total_tokens(), "token"),
                    format_count(counts.targets));
    if (!dataset_.template_name().empty()) text += fmt::format("; written by {}", dataset_.template_name());
    return text;
  }

  std::vector<std::string> doubts() const override {
    const data::PreferenceCounts& counts = dataset_.counts();
    std::vector<std::string> doubts;
    const auto add = [&](int64_t pairs, const std::string& what) {
      if (pairs > 0)
        doubts.push_back(
            fmt::format("{}: {} of {} rows {}", key_, format_count(pairs), format_count(counts.rows), what));
    };
    add(counts.same_answers, "left out, because chosen and rejected are the same");
    add(counts.empty_answers, "left out, because an answer is empty");
    add(counts.without_room, "left out, because the prompt alone fills data.max_length");
    add(counts.cut, fmt::format("have an answer that is cut, {} tokens after the prompt's beginning", max_length_));
    add(counts.merged,
        "have a prompt whose last tokens change when the answer follows; the answer begins where they part");
    return doubts;
  }

 private:
  std::string key_;
  int64_t max_length_;
  data::PreferenceDataset dataset_;
  data::PreferenceCollator collator_;
  std::vector<size_t> entry_ends_;
};

void require_options(const config::RunFile& run) {
  refuse_packing(run);
  if (run.dpo.label_smoothing == 0 || run.dpo.loss == config::RunFile::Dpo::Loss::kSigmoid) return;
  throw Error(ErrorKind::kConfig, {"'dpo.label_smoothing' is of the loss sigmoid, and 'dpo.loss' is another", run.name,
                                   "leave it out, or write dpo.loss: sigmoid"});
}

// Whether what training begins with is the model without its adapter.
bool begins_without_adapter(const config::RunFile& run) {
  const auto adapter = adapter_of(run);
  return adapter && run.adapter.path.empty() && adapter->modules_to_save.empty();
}

at::Tensor reference_table(const TaskStart& start) {
  auto& training = static_cast<PreferenceData&>(start.training);
  auto* const held_out = static_cast<PreferenceData*>(start.held_out);
  std::string model = facts_of_model(start.run);
  if (start.run.model.init == config::RunFile::Model::Init::kRandom) {
    model += fmt::format("random weights of seed {}", start.run.training.seed);
  }
  uint64_t hash = training.hash(kFnvOffset);
  std::vector<data::Samples<data::Batch>> data{training.samples()};
  if (held_out != nullptr) {
    held_out->number_from(training.size());
    hash = held_out->hash(hash);
    data.push_back(held_out->samples());
  }
  return reference_log_probs({.engine = start.engine,
                              .data = std::move(data),
                              .output = start.run.output,
                              .model = fmt::format("{:016x}", fnv1a(model)),
                              .data_hash = fmt::format("{:016x}", hash),
                              .resumes = start.resumes});
}

class PreferenceStep {
 public:
  explicit PreferenceStep(const TaskStart& start) : engine_(start.engine), options_(start.run.dpo) {
    if (begins_without_adapter(start.run)) {
      adapter_.emplace(engine_.module());
    } else {
      table_ = reference_table(start);
    }
  }

  BatchLoss loss(const data::Batch& batch) {
    const models::NamedTensors tensors = tensors_of(engine_, batch);
    const AnswerLogProbs reference = reference_of(tensors);
    const AnswerLogProbs policy = halves(answer_log_probs(engine_, tensors));
    const AnswerLogProbs lengths = halves((tensors.at("labels") != data::kNoTarget).sum(1).to(at::kFloat));
    const PreferenceLosses found = preference_losses(options_, policy, reference, lengths);
    BatchLoss loss{.sum = found.losses.sum(), .targets = batch.target_tokens, .tokens = batch.tokens};
    if (!at::GradMode::is_enabled()) {
      loss.tallies = {(found.margins > 0).sum().item<double>(), found.margins.to(at::kDouble).sum().item<double>()};
    }
    return loss;
  }

 private:
  static AnswerLogProbs halves(const at::Tensor& both) {
    const int64_t pairs = both.size(0) / 2;
    return {both.narrow(0, 0, pairs), both.narrow(0, pairs, pairs)};
  }

  AnswerLogProbs reference_of(const models::NamedTensors& tensors) {
    if (!adapter_) {
      const at::Tensor rows = table_.index_select(0, tensors.at("pairs"));
      return {rows.select(1, 0), rows.select(1, 1)};
    }
    const at::NoGradGuard no_grad;
    const bool is_training = engine_.module().is_training();
    engine_.eval();
    adapter_->enable(false);
    const AnswerLogProbs found = halves(answer_log_probs(engine_, tensors));
    adapter_->enable(true);
    engine_.train(is_training);
    return found;
  }

  NetworkEngine& engine_;
  config::RunFile::Dpo options_;
  std::optional<models::AdapterSwitch> adapter_;  // nothing: there is a table
  at::Tensor table_;                              // (pairs, 2)
};

// Of PreferenceStep's tallies. TRL's rewards/accuracies and rewards/margins.
std::vector<Metric> preference_metrics(const config::RunFile&) {
  const auto mean_of = [](size_t tally) {
    return [tally](const LossSum& seen) { return seen.tallies[tally] / static_cast<double>(seen.targets); };
  };
  return {{.name = "reward_accuracy", .larger_is_better = true, .value = mean_of(0)},
          {.name = "reward_margin", .larger_is_better = true, .value = mean_of(1)}};
}

}  // namespace

TaskType preference_task() {
  return {.head = "CausalLM",
          .read = [](const DataSource& source) -> std::unique_ptr<TaskData> {
            require_options(source.run);
            return std::make_unique<PreferenceData>(source);
          },
          .metrics = preference_metrics,
          .start = [](const TaskStart& start) -> LossOfBatch {
            return [step = std::make_shared<PreferenceStep>(start)](const data::Batch& batch) {
              return step->loss(batch);
            };
          },
          .keeps_tokens = true,
          .rows_of_sample = 2,
          .without_dropout = true,
          .rate_share = 0.05};
}

}  // namespace tessera::train
