// The task "copy": the target of each token of a text is the token itself.
#include <algorithm>

#include "tests/train/toy/parts.h"

namespace tessera::toy {
namespace {

class CopiedText final : public train::TextData {
 public:
  using TextData::TextData;

  data::Samples<data::Batch> samples() const override {
    return {.size = dataset().size(),
            .collate = [this](std::span<const size_t> rows, int64_t) { return collate(rows); },
            .count_targets = [this](std::span<const size_t> rows, int64_t) { return collate(rows).target_tokens; }};
  }

 private:
  data::Batch collate(std::span<const size_t> rows) const {
    size_t length = 0;
    for (const size_t row : rows) length = std::max(length, dataset().sample(row).size());
    data::Batch batch{.rows = static_cast<int64_t>(rows.size())};
    const std::vector<int64_t> shape = {batch.rows, static_cast<int64_t>(length)};
    auto& ids = batch.add("input_ids", shape, 0);
    auto& labels = batch.add("labels", shape, data::kNoTarget);
    for (size_t row = 0; row < rows.size(); ++row) {
      const auto tokens = dataset().sample(rows[row]);
      std::copy(tokens.begin(), tokens.end(), ids.begin() + static_cast<std::ptrdiff_t>(row * length));
      std::copy(tokens.begin(), tokens.end(), labels.begin() + static_cast<std::ptrdiff_t>(row * length));
      batch.tokens += static_cast<int64_t>(tokens.size());
    }
    batch.target_tokens = batch.tokens;
    return batch;
  }
};

}  // namespace

train::TaskType copy_task() {
  return {.head = "Copying",
          .read = [](const train::DataSource& source) -> std::unique_ptr<train::TaskData> {
            return std::make_unique<CopiedText>(source);
          },
          .loss = train::batch_loss};
}

}  // namespace tessera::toy
