#include "tessera/train/text_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/config/run_file.h"
#include "tessera/data/collators.h"
#include "tessera/data/reader.h"

namespace tessera::train {
namespace {

// Above these shares of a text's tokens a warning says what is lost.
constexpr double kMuchCut = 0.1;
constexpr double kManyUnknown = 0.05;

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string percent(int64_t part, int64_t whole) { return fmt::format("{:.3g} %", 100 * share(part, whole)); }

data::DatasetOptions dataset_options(const DataSource& source, const TextShape& shape) {
  const config::RunFile::Data& data = source.run.data;
  const bool chunks = data.long_text == config::RunFile::Data::LongText::kChunk;
  return {.files = data::expand_files(source.paths),
          .text_column = data.text_column,
          .max_length = shape.is_whole ? std::numeric_limits<int64_t>::max() : data.max_length,
          .drop_empty = data.drop_empty,
          .long_text = chunks ? data::LongText::kChunk : data::LongText::kTruncate,
          .ends_with_eos = shape.ends_with_eos,
          .cache = token_cache_of(source),
          .name = source.key};
}

class CollatedText final : public TextData {
 public:
  CollatedText(const DataSource& source, const std::string& collator, const TextShape& shape)
      : TextData(source, shape),
        collator_(data::collators()
                      .find(collator, "the task " + source.run.task, ErrorKind::kConfig)
                      .make({.dataset = dataset(),
                             .tokenizer = source.tokenizer,
                             .options = source.run.data,
                             .seed = static_cast<uint64_t>(source.run.training.seed),
                             .part_ends = entry_ends_of_dataset()})),
        row_length_(source.run.data.max_length) {
    require_samples(source, collator_->size());
  }

  data::Samples<data::Batch> samples() const override { return collator_->samples(); }

  std::vector<size_t> entry_ends() const override {
    const std::vector<size_t> ends = collator_->part_ends();
    return ends.empty() ? TextData::entry_ends() : ends;
  }

  std::string description() const override {
    const std::string text = TextData::description();
    if (collator_->size() == dataset().size()) return text;
    return fmt::format("{}; packed into {} of up to {}", text, count_of(static_cast<int64_t>(collator_->size()), "row"),
                       count_of(row_length_, "token"));
  }

 private:
  std::unique_ptr<data::Collator> collator_;
  int64_t row_length_;
};

}  // namespace

TextData::TextData(const DataSource& source, const TextShape& shape)
    : key_(source.key),
      options_(dataset_options(source, shape)),
      dataset_(source.tokenizer, options_),
      entry_ends_(ends_of_entries(source.paths, dataset_.file_ends())) {
  if (!shape.is_whole) require_samples(source, dataset_.size());
}

std::vector<uint64_t> ends_of_entries(const std::vector<std::string>& entries, std::span<const uint64_t> file_ends) {
  std::vector<uint64_t> ends;
  size_t files = 0;
  for (const std::string& entry : entries) {
    files += data::expand_files({entry}).size();
    ends.push_back(files == 0 ? 0 : file_ends[files - 1]);
  }
  return ends;
}

std::string token_cache_of(const DataSource& source) {
  constexpr uintmax_t kLarge = uintmax_t{64} << 20;  // bytes of text; less is tokenised in seconds
  const std::string& asked = source.run.data.cache;
  if (asked == "none") return "";
  if (asked != "auto") return asked;
  uintmax_t bytes = 0;
  for (const std::string& file : data::expand_files(source.paths)) {
    std::error_code failed;
    const uintmax_t own = std::filesystem::file_size(file, failed);
    bytes += failed ? 0 : own;
  }
  return bytes < kLarge ? "" : (std::filesystem::path(source.run.output) / "tokens").string();
}

void require_samples(const DataSource& source, size_t samples) {
  if (samples >= static_cast<size_t>(source.ranks)) return;
  throw Error(ErrorKind::kData, {fmt::format("'{}' has only {}, which is not enough for {} ranks", source.key,
                                             count_of(static_cast<int64_t>(samples), "sample"), source.ranks),
                                 fmt::format("{}", fmt::join(source.paths, ", ")), "use fewer ranks or more data"});
}

std::vector<double> TaskData::eval_tallies(NetworkEngine& /*engine*/, std::span<const size_t> /*held_out*/) const {
  return {};
}

std::vector<size_t> TextData::entry_ends() const { return {entry_ends_.begin(), entry_ends_.end()}; }

std::string TextData::description() const { return describe_dataset(key_, dataset_, options_); }

std::vector<std::string> TextData::doubts() const { return doubts_of_dataset(key_, dataset_, options_); }

std::unique_ptr<TaskData> read_collated_text(const DataSource& source, const std::string& collator,
                                             const TextShape& shape) {
  return std::make_unique<CollatedText>(source, collator, shape);
}

void refuse_packing(const config::RunFile& run) {
  if (data::packing_of(run.data, data::Packing::kNone) == data::Packing::kNone) return;
  throw Error(ErrorKind::kConfig,
              {fmt::format("'data.packing' lays several samples in a row, which the task {} does not know", run.task),
               run.name, "leave it out, or write none"});
}

std::string describe_dataset(const std::string& key, const data::TokenizedDataset& dataset,
                             const data::DatasetOptions& options) {
  const data::TextCounts& counts = dataset.counts();
  std::string text = fmt::format("{}: {}", key, count_of(counts.rows, "row"));
  if (counts.empty_rows > 0) {
    text += fmt::format(", {} of them empty and {}", format_count(counts.empty_rows),
                        options.drop_empty ? "left out" : "kept as samples (data.drop_empty: false)");
  }
  text += fmt::format("; {}, {} per epoch", count_of(static_cast<int64_t>(dataset.size()), "sample"),
                      count_of(dataset.total_tokens(), "token"));
  if (counts.long_rows > 0) {
    const std::string rows = counts.long_rows == 1 ? "1 row is" : format_count(counts.long_rows) + " rows are";
    text += fmt::format("; {} longer than data.max_length and {}", rows,
                        options.long_text == data::LongText::kChunk
                            ? "split into several samples"
                            : fmt::format("cut: {} ({}) left out", count_of(counts.cut_tokens, "token"),
                                          percent(counts.cut_tokens, counts.text_tokens)));
  }
  if (counts.unknown_tokens > 0) {
    text +=
        fmt::format("; {} of the tokens are not in the vocabulary", percent(counts.unknown_tokens, counts.text_tokens));
  }
  return text;
}

std::vector<std::string> doubts_of_counts(const std::string& key, const data::TextCounts& counts, int64_t max_length,
                                          const std::string& remedy) {
  std::vector<std::string> doubts;
  if (share(counts.cut_tokens, counts.text_tokens) > kMuchCut) {
    doubts.push_back(fmt::format("{}: {} of the text is lost because rows are cut after {} tokens{}{}", key,
                                 percent(counts.cut_tokens, counts.text_tokens), max_length, remedy.empty() ? "" : "; ",
                                 remedy));
  }
  if (share(counts.unknown_tokens, counts.text_tokens) > kManyUnknown) {
    doubts.push_back(
        fmt::format("{}: {} of the tokens are not in the tokenizer's vocabulary; is this the right tokenizer for the "
                    "language of this text?",
                    key, percent(counts.unknown_tokens, counts.text_tokens)));
  }
  return doubts;
}

std::vector<std::string> doubts_of_dataset(const std::string& key, const data::TokenizedDataset& dataset,
                                           const data::DatasetOptions& options) {
  return doubts_of_counts(key, dataset.counts(), options.max_length,
                          "data.long_text: chunk splits long rows into several samples");
}

}  // namespace tessera::train
