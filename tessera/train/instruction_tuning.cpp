// The task sft: tuning on instructions. Each token of the answers is predicted from those before it in its
// conversation.
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/config/run_file.h"
#include "tessera/data/chat_dataset.h"
#include "tessera/data/clm_collator.h"
#include "tessera/data/collators.h"
#include "tessera/data/reader.h"
#include "tessera/train/tasks.h"

namespace tessera::train {
namespace {

data::Packing packing_of_chat(const config::RunFile& run) {
  const data::Packing packing = data::packing_of(run.data, data::Packing::kNone);
  if (packing != data::Packing::kFill) return packing;
  throw Error(ErrorKind::kConfig, {"'data.packing' is fill, which would cut conversations in two", run.name,
                                   "use fit, which keeps them whole, or none"});
}

class ChatData final : public TaskData {
 public:
  explicit ChatData(const DataSource& source)
      : key_(source.key),
        max_length_(source.run.data.max_length),
        packing_(packing_of_chat(source.run)),
        dataset_(source.tokenizer, {.files = data::expand_files(source.paths),
                                    .tokenizer_folder = source.run.tokenizer,
                                    .chat_template = source.run.data.chat_template,
                                    .max_length = source.run.data.max_length,
                                    .cache = token_cache_of(source),
                                    .name = source.key}),
        collator_(dataset_, {.max_length = source.run.data.max_length,
                             .packing = packing_,
                             .pad_to_max_length = source.run.data.padding == config::RunFile::Data::Padding::kMaxLength,
                             .padding_id = source.tokenizer.special_ids().pad.value_or(0),
                             .part_ends = ends_of_entries(source.paths, dataset_.file_ends())}) {
    require_samples(source, collator_.size());
  }

  data::Samples<data::Batch> samples() const override { return collator_.samples(); }
  std::vector<size_t> entry_ends() const override { return collator_.part_ends(); }

  std::string description() const override {
    const data::ChatCounts& counts = dataset_.counts();
    std::string text = fmt::format("{}: {}; {}, {} per epoch, of which {} are to be predicted", key_,
                                   count_of(counts.conversations, "conversation"),
                                   count_of(static_cast<int64_t>(dataset_.size()), "sample"),
                                   count_of(dataset_.total_tokens(), "token"), format_count(counts.targets));
    if (!dataset_.template_name().empty()) text += fmt::format("; written by {}", dataset_.template_name());
    if (counts.split > 0) {
      text += fmt::format("; {} split into a sample for each answer, because the template changes earlier turns",
                          count_of(counts.split, "conversation"));
    }
    if (collator_.size() != dataset_.size()) {
      text += fmt::format("; packed into {} of up to {}", count_of(static_cast<int64_t>(collator_.size()), "row"),
                          count_of(max_length_, "token"));
    }
    return text;
  }

  std::vector<std::string> doubts() const override {
    const data::ChatCounts& counts = dataset_.counts();
    std::vector<std::string> doubts;
    if (counts.long_samples > 0) {
      doubts.push_back(fmt::format(
          "{}: {} longer than data.max_length and cut after {} tokens", key_,
          counts.long_samples == 1 ? "1 sample is" : format_count(counts.long_samples) + " samples are", max_length_));
    }
    if (counts.without_answer > 0) {
      doubts.push_back(fmt::format(
          "{}: {} left out, because no answer is within data.max_length", key_,
          counts.without_answer == 1 ? "1 sample is" : format_count(counts.without_answer) + " samples are"));
    }
    return doubts;
  }

 private:
  std::string key_;
  int64_t max_length_;
  data::Packing packing_;
  data::ChatDataset dataset_;
  data::ClmCollator collator_;
};

}  // namespace

TaskType instruction_task() {
  return {
      .head = "CausalLM",
      .read = [](const DataSource& source) -> std::unique_ptr<TaskData> { return std::make_unique<ChatData>(source); },
      .metrics = [](const config::RunFile&) { return std::vector<Metric>{perplexity()}; },
      .keeps_tokens = true};
}

}  // namespace tessera::train
