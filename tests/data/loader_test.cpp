#include "tessera/data/loader.h"

#include <algorithm>
#include <set>

#include "tests/data/tiny_vocabulary.h"

namespace tessera::data {
namespace {

class Loading : public WithTinyVocabulary {
 protected:
  // 22 samples, told apart by their letter.
  TokenizedDataset dataset() {
    std::string text;
    for (char c = 'a'; c < 'a' + 22; ++c) text += std::string(1, c) + "\n";
    return TokenizedDataset(*tokenizer_, {.files = {write("text.txt", text)}, .max_length = 4});
  }

  // The letters of a step over all ranks, with what the masks made of them.
  static std::multiset<std::pair<int64_t, int64_t>> rows_of(const std::vector<StepBatches>& ranks) {
    std::multiset<std::pair<int64_t, int64_t>> rows;
    for (const StepBatches& step : ranks) {
      for (const Batch& batch : step.micro_batches) {
        for (int64_t row = 0; row < batch.rows; ++row) {
          rows.emplace(batch.input_ids[row * batch.length + 1], batch.labels[row * batch.length + 1]);
        }
      }
    }
    return rows;
  }
};

TEST_F(Loading, TheSamplesAndMasksOfAStepDoNotDependOnHowItIsSplit) {
  const auto data = dataset();
  const MlmCollator collator(data, *tokenizer_, {.probability = 0.5, .max_length = 4});
  struct Split {
    int64_t micro, accumulation, world;
  };
  std::vector<std::vector<std::multiset<std::pair<int64_t, int64_t>>>> all;
  for (const Split split : {Split{8, 1, 1}, {4, 2, 1}, {4, 1, 2}, {1, 4, 2}, {2, 1, 4}}) {
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int64_t rank = 0; rank < split.world; ++rank) {
      ranks.push_back(std::make_unique<Loader>(data, collator,
                                               LoaderOptions{.micro_batch = split.micro,
                                                             .accumulation = split.accumulation,
                                                             .world_size = split.world,
                                                             .rank = rank}));
    }
    std::vector<std::multiset<std::pair<int64_t, int64_t>>> steps;
    for (int step = 0; step < 2; ++step) {  // the full ones: 22 = 8 + 8 + 6
      std::vector<StepBatches> parts;
      for (const auto& loader : ranks) parts.push_back(loader->next());
      EXPECT_EQ(parts[0].samples, 8);
      int64_t targets = 0;
      for (const StepBatches& part : parts) {
        for (const Batch& batch : part.micro_batches) targets += batch.target_tokens;
      }
      EXPECT_EQ(parts[0].target_tokens, targets);
      steps.push_back(rows_of(parts));
    }
    all.push_back(steps);
  }
  for (size_t i = 1; i < all.size(); ++i) EXPECT_EQ(all[i], all[0]) << "split " << i;
}

TEST_F(Loading, AnEpochVisitsEachSampleOnce) {
  const auto data = dataset();
  const MlmCollator collator(data, *tokenizer_, {.probability = 0, .max_length = 4});
  Loader loader(data, collator, {.micro_batch = 4, .accumulation = 2});
  EXPECT_EQ(loader.steps_per_epoch(), 3);
  std::set<int64_t> letters;
  int64_t rows = 0;
  for (int step = 0; step < 3; ++step) {
    const StepBatches batches = loader.next();
    EXPECT_EQ(batches.epoch, 0);
    EXPECT_EQ(batches.step_in_epoch, step);
    for (const Batch& batch : batches.micro_batches) {
      rows += batch.rows;
      for (int64_t row = 0; row < batch.rows; ++row) letters.insert(batch.input_ids[row * batch.length + 1]);
    }
  }
  EXPECT_EQ(rows, 22);
  EXPECT_EQ(letters.size(), 22u);
  EXPECT_EQ(loader.next().epoch, 1);
}

TEST_F(Loading, DropLastLeavesOutTheIncompleteStep) {
  const auto data = dataset();
  const MlmCollator collator(data, *tokenizer_, {.max_length = 4});
  Loader loader(data, collator, {.micro_batch = 4, .accumulation = 2, .drop_last = true});
  EXPECT_EQ(loader.steps_per_epoch(), 2);
}

TEST_F(Loading, ASeekEqualsARunUpToThere) {
  const auto data = dataset();
  const MlmCollator collator(data, *tokenizer_, {.max_length = 4});
  Loader running(data, collator, {.micro_batch = 2});
  for (int i = 0; i < 13; ++i) running.next();
  Loader seeking(data, collator, {.micro_batch = 2});
  seeking.seek(1, 2);  // eleven steps an epoch
  const StepBatches want = running.next();
  const StepBatches got = seeking.next();
  EXPECT_EQ(got.epoch, want.epoch);
  EXPECT_EQ(got.step_in_epoch, want.step_in_epoch);
  EXPECT_EQ(got.micro_batches[0].input_ids, want.micro_batches[0].input_ids);
}

}  // namespace
}  // namespace tessera::data
