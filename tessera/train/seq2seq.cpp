// The task seq2seq: an encoder-decoder reads a text and writes another; each token of it is predicted from the first
// text and the tokens before it.
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/config/run_file.h"
#include "tessera/data/collators.h"
#include "tessera/data/pair_collator.h"
#include "tessera/data/reader.h"
#include "tessera/train/tasks.h"

namespace tessera::train {
namespace {

void refuse_packing(const config::RunFile& run) {
  if (data::packing_of(run.data, data::Packing::kNone) == data::Packing::kNone) return;
  throw Error(ErrorKind::kConfig, {"'data.packing' lays several samples in a row, which the task seq2seq does not know",
                                   run.name, "leave it out, or write none"});
}

class PairData final : public TaskData {
 public:
  explicit PairData(const DataSource& source)
      : key_(source.key),
        dataset_(source.tokenizer, {.files = data::expand_files(source.paths),
                                    .source_column = source.run.data.source_column,
                                    .target_column = source.run.data.target_column,
                                    .source_prefix = source.run.data.source_prefix,
                                    .max_source = source.run.data.max_length,
                                    .max_target = source.run.data.max_target_length}),
        collator_(dataset_, options_of(source)) {
    require_samples(source, dataset_.size());
  }

  data::Samples<data::Batch> samples() const override { return collator_.samples(); }

  std::string description() const override {
    const data::PairCounts& counts = dataset_.counts();
    std::string text = fmt::format("{}: {}", key_, count_of(counts.rows, "row"));
    if (counts.empty_rows > 0)
      text += fmt::format(", {} of them without a text and left out", format_count(counts.empty_rows));
    return text + fmt::format("; {} to read and {} to write per epoch",
                              count_of(dataset_.sources().total_tokens(), "token"),
                              format_count(dataset_.targets().total_tokens()));
  }

  std::vector<std::string> doubts() const override {
    std::vector<std::string> doubts;
    const data::PairCounts& counts = dataset_.counts();
    const auto add = [&](int64_t cut, const char* what, const char* key) {
      if (cut > 0)
        doubts.push_back(fmt::format("{}: {} of {} rows have a {} longer than {}, which is cut", key_,
                                     format_count(cut), format_count(counts.rows), what, key));
    };
    add(counts.cut_sources, "source", "data.max_length");
    add(counts.cut_targets, "target", "data.max_target_length");
    return doubts;
  }

 private:
  static data::PairCollatorOptions options_of(const DataSource& source) {
    const config::RunFile::Data& data = source.run.data;
    const bool whole = data.padding == config::RunFile::Data::Padding::kMaxLength;
    return {.source_length = whole ? data.max_length : 0,
            .target_length = whole ? data.max_target_length : 0,
            .padding_id = source.tokenizer.special_ids().pad.value_or(0)};
  }

  std::string key_;
  data::PairDataset dataset_;
  data::PairCollator collator_;
};

}  // namespace

TaskType seq2seq_task() {
  return {.head = "Seq2SeqLM",
          .read = [](const DataSource& source) -> std::unique_ptr<TaskData> {
            refuse_packing(source.run);
            return std::make_unique<PairData>(source);
          },
          .loss = batch_loss};
}

}  // namespace tessera::train
