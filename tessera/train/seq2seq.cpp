// The task seq2seq: an encoder-decoder reads a text and writes another; each token of it is predicted from the first
// text and the tokens before it.
#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/config/run_file.h"
#include "tessera/data/bleu.h"
#include "tessera/data/collators.h"
#include "tessera/data/pair_collator.h"
#include "tessera/data/reader.h"
#include "tessera/train/tasks.h"
#include "tessera/train/text_data.h"
#include "tessera/train/written_texts.h"

namespace tessera::train {
namespace {

constexpr size_t kBleuTallies = 2 * data::BleuTallies::kOrders + 2;

std::vector<double> as_numbers(const data::BleuTallies& tallies) {
  std::vector<double> numbers(tallies.ngrams.begin(), tallies.ngrams.end());
  numbers.insert(numbers.end(), tallies.matches.begin(), tallies.matches.end());
  numbers.insert(numbers.end(), {static_cast<double>(tallies.tokens), static_cast<double>(tallies.reference_tokens)});
  return numbers;
}

// They are the last.
double bleu_of(const LossSum& seen) {
  TESSERA_INVARIANT(seen.tallies.size() >= kBleuTallies);
  const double* const numbers = seen.tallies.data() + seen.tallies.size() - kBleuTallies;
  const auto count = [&](size_t i) { return static_cast<int64_t>(numbers[i]); };
  data::BleuTallies tallies{.tokens = count(kBleuTallies - 2), .reference_tokens = count(kBleuTallies - 1)};
  for (size_t i = 0; i < data::BleuTallies::kOrders; ++i) {
    tallies.ngrams[i] = count(i);
    tallies.matches[i] = count(data::BleuTallies::kOrders + i);
  }
  return tallies.score();
}

class PairData final : public TaskData {
 public:
  explicit PairData(const DataSource& source)
      : run_(source.run),
        tokenizer_(source.tokenizer),
        key_(source.key),
        dataset_(source.tokenizer, {.files = data::expand_files(source.paths),
                                    .source_column = source.run.data.source_column,
                                    .target_column = source.run.data.target_column,
                                    .source_prefix = source.run.data.source_prefix,
                                    .max_source = source.run.data.max_length,
                                    .max_target = source.run.data.max_target_length,
                                    .keeps_target_texts = is_scored(source),
                                    .cache = token_cache_of(source),
                                    .name = source.key}),
        collator_(dataset_, data::padding_of(source.run.data, source.tokenizer), target_length_of(source.run)),
        entry_ends_(ends_of_entries(source.paths, dataset_.file_ends())) {
    require_samples(source, dataset_.size());
  }

  data::Samples<data::Batch> samples() const override { return collator_.samples(); }
  std::vector<size_t> entry_ends() const override { return {entry_ends_.begin(), entry_ends_.end()}; }

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

  // BLEU's, of what the model writes for training.eval_bleu of the samples, spread evenly over them, beside their whole
  // targets. The ranks share them.
  std::vector<double> eval_tallies(NetworkEngine& engine, std::span<const size_t> held_out) const override {
    const size_t all = std::min(static_cast<size_t>(run_.training.eval_bleu), held_out.size());
    if (all == 0) return {};
    const auto ranks = static_cast<size_t>(engine.data_group().size());
    std::vector<size_t> own;
    std::vector<std::vector<int32_t>> prompts;
    for (auto i = static_cast<size_t>(engine.data_group().rank()); i < all; i += ranks) {
      own.push_back(held_out[i * held_out.size() / all]);
      const auto source = dataset_.sources().sample(own.back());
      prompts.emplace_back(source.begin(), source.end());
    }
    GenerationConfig config = read_generation_config(run_.model.path, tokenizer_);
    report_doubts(config, engine.data_group().rank());
    const auto written = write_texts(engine, prompts, (all + ranks - 1) / ranks,
                                     {.at_once = engine.train_micro_batch_size_per_gpu(),
                                      .max_new_tokens = run_.data.max_target_length,
                                      .config = std::move(config)});
    data::BleuTallies tallies;
    for (size_t i = 0; i < own.size(); ++i) {
      const std::string text = tokenizer_.decode(written[i], /*skip_special=*/true);
      tallies += data::bleu_tallies(text, dataset_.target_text(own[i]));
    }
    return as_numbers(tallies);
  }

 private:
  static bool is_scored(const DataSource& source) {
    const bool held_out = source.key == "data.eval" || source.run.data.eval.empty();
    return held_out && source.run.training.eval_bleu > 0;
  }
  static int64_t target_length_of(const config::RunFile& run) {
    return run.data.padding == config::RunFile::Data::Padding::kMaxLength ? run.data.max_target_length : 0;
  }

  const config::RunFile& run_;
  const data::Tokenizer& tokenizer_;
  std::string key_;
  data::PairDataset dataset_;
  data::PairCollator collator_;
  std::vector<uint64_t> entry_ends_;
};

}  // namespace

TaskType seq2seq_task() {
  return {.head = "Seq2SeqLM",
          .read = [](const DataSource& source) -> std::unique_ptr<TaskData> {
            refuse_packing(source.run);
            return std::make_unique<PairData>(source);
          },
          .metrics = [](const config::RunFile& run) -> std::vector<Metric> {
            if (run.training.eval_bleu == 0) return {};
            return {{.name = "bleu", .larger_is_better = true, .value = bleu_of}};
          },
          .writes_texts = true,
          .keeps_tokens = true};
}

}  // namespace tessera::train
