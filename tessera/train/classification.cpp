// The task classification: a label for each text, or for each pair of texts. The loss is the mean cross entropy of the
// rows; an evaluation also reports accuracy and F1 (label_metrics.h).
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/config/run_file.h"
#include "tessera/data/collators.h"
#include "tessera/data/label_collator.h"
#include "tessera/data/label_dataset.h"
#include "tessera/data/reader.h"
#include "tessera/models/sequence_classifier.h"
#include "tessera/train/label_metrics.h"
#include "tessera/train/tasks.h"
#include "tessera/train/text_data.h"

namespace tessera::train {
namespace {

[[noreturn]] void refuse_setting(const config::RunFile& run, const std::string& what, const std::string& fix) {
  throw Error(ErrorKind::kConfig, {what, run.name, fix});
}

void require_classifiable(const config::RunFile& run) {
  refuse_packing(run);
  if (run.data.long_text == config::RunFile::Data::LongText::kChunk) {
    refuse_setting(run, "'data.long_text' splits a row into several samples, but its label is that of the whole",
                   "leave it out, or write truncate");
  }
  if (run.adapter.rank > 0 || !run.adapter.path.empty()) {
    refuse_setting(run, "an adapter beside the model is not supported by the task classification",
                   "leave 'adapter' out; model.freeze trains a part of the model alone");
  }
}

// A head that is there already tells its own labels apart: they may get other names, but no other numbers.
void require_labels_of_head(const config::RunFile& run, const std::vector<std::string>& own) {
  const std::vector<std::string>& labels = run.data.labels;
  const std::string where = run.model.path + "/config.json";
  if (labels.size() != own.size()) {
    throw Error(ErrorKind::kConfig, {fmt::format("data.labels names {}, but the model tells {} apart",
                                                 count_of(static_cast<int64_t>(labels.size()), "label"), own.size()),
                                     where, "name as many, or begin with a model without such a head"});
  }
  const bool same_names =
      std::set<std::string>(labels.begin(), labels.end()) == std::set<std::string>(own.begin(), own.end());
  if (same_names && labels != own) {
    throw Error(ErrorKind::kConfig, {"data.labels has the model's own labels in another order", where,
                                     fmt::format("write them in its order: {}", fmt::join(own, ", "))});
  }
}

void require_names(const config::RunFile& run) {
  const std::vector<std::string>& labels = run.data.labels;
  if (labels.size() == 1) refuse_setting(run, "'data.labels' names one label alone", "name at least two");
  std::set<std::string> seen;
  for (const std::string& label : labels) {
    if (!seen.insert(label).second) {
      refuse_setting(run, fmt::format("'data.labels' names '{:.100}' twice", label), "name each label once");
    }
  }
}

std::vector<std::string> labels_of_run(const config::RunFile& run) {
  require_classifiable(run);
  require_names(run);
  const models::ModelConfig config = models::read_model_config(run.model.path);
  const std::vector<std::string> own = models::labels_in(config);
  const bool has_head = models::is_classifier(config) && run.model.init == config::RunFile::Model::Init::kPretrained;
  if (!run.data.labels.empty()) {
    if (has_head) require_labels_of_head(run, own);
    return run.data.labels;
  }
  if (has_head || !models::are_placeholders(own)) return own;
  return data::labels_of_files(data::expand_files(run.data.train), run.data.label_column);
}

class LabelData final : public TaskData {
 public:
  explicit LabelData(const DataSource& source)
      : key_(source.key),
        max_length_(source.run.data.max_length),
        labels_(source.run.data.labels),
        dataset_(source.tokenizer, {.files = data::expand_files(source.paths),
                                    .text_column = source.run.data.text_column,
                                    .pair_column = source.run.data.text_pair_column,
                                    .label_column = source.run.data.label_column,
                                    .labels = labels_,
                                    .max_length = source.run.data.max_length,
                                    .drop_empty = source.run.data.drop_empty,
                                    .cache = token_cache_of(source),
                                    .name = source.key}),
        collator_(dataset_, data::padding_of(source.run.data, source.tokenizer)),
        entry_ends_(ends_of_entries(source.paths, dataset_.file_ends())) {
    require_samples(source, dataset_.size());
  }

  data::Samples<data::Batch> samples() const override { return collator_.samples(); }
  std::vector<size_t> entry_ends() const override { return entry_ends_; }

  std::string description() const override {
    const data::LabelCounts& counts = dataset_.counts();
    std::string text = fmt::format("{}: {}", key_, count_of(counts.rows, "row"));
    if (counts.empty_rows > 0) {
      text += fmt::format(", {} of them empty and left out", format_count(counts.empty_rows));
    }
    text += fmt::format("; {}, {} per epoch", count_of(static_cast<int64_t>(dataset_.size()), "sample"),
                        count_of(dataset_.texts().total_tokens(), "token"));
    if (counts.long_rows > 0) {
      text += fmt::format("; {} longer than data.max_length and cut: {} left out",
                          counts.long_rows == 1 ? "1 row is" : format_count(counts.long_rows) + " rows are",
                          count_of(counts.cut_tokens, "token"));
    }
    return text + fmt::format("; {}: {}", count_of(static_cast<int64_t>(labels_.size()), "label"), shares());
  }

  std::vector<std::string> doubts() const override {
    const data::LabelCounts& counts = dataset_.counts();
    std::vector<std::string> doubts = doubts_of_counts(key_, counts, max_length_, /*remedy=*/"");
    const auto missing = std::find(counts.of_label.begin(), counts.of_label.end(), 0);
    if (missing != counts.of_label.end()) {
      doubts.push_back(fmt::format("{}: no row has the label '{}'", key_,
                                   labels_[static_cast<size_t>(missing - counts.of_label.begin())]));
    }
    return doubts;
  }

 private:
  static constexpr size_t kLabelsShown = 10;

  // "negative 120, positive 80"
  std::string shares() const {
    std::string text;
    for (size_t label = 0; label < std::min(labels_.size(), kLabelsShown); ++label) {
      text += fmt::format("{}{} {}", label == 0 ? "" : ", ", labels_[label],
                          format_count(dataset_.counts().of_label[label]));
    }
    return labels_.size() > kLabelsShown ? text + ", …" : text;
  }

  std::string key_;
  int64_t max_length_;
  std::vector<std::string> labels_;
  data::LabelDataset dataset_;
  data::LabelCollator collator_;
  std::vector<size_t> entry_ends_;
};

std::vector<double> tallies_of(const std::vector<at::Tensor>& outputs, const models::NamedTensors& batch) {
  if (outputs.size() > 1) return label_tallies(outputs[1], batch.at("labels"));
  throw Error(ErrorKind::kUsage, {"the model's class for classification is no SequenceClassifier",
                                  "models/sequence_classifier.h", "derive its network from that"});
}

}  // namespace

TaskType classification_task() {
  return {
      .head = models::kClassifierHead,
      .read = [](const DataSource& source) -> std::unique_ptr<TaskData> { return std::make_unique<LabelData>(source); },
      .target_share = [](const config::RunFile& run) { return 1 / static_cast<double>(run.data.max_length); },
      .tallies = tallies_of,
      .metrics = [](const config::RunFile& run) { return label_metrics(run.data.labels.size()); },
      .labels = labels_of_run,
      .keeps_tokens = true};
}

}  // namespace tessera::train
