#include "tessera/data/loader.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tessera/data/mlm_collator.h"
#include "tessera/data/sampler.h"
#include "tests/data/tiny_folder.h"

namespace tessera::data::loader_test {
namespace {

using MlmLoader = Loader<Batch>;

// Sample i is a stretch of i + 1 letters, so that each row of a batch tells by its length which sample it is.
class LoaderTest : public testing::Test {
 protected:
  static constexpr size_t kSamples = 22;

  static TokenizedDataset make_dataset() {
    const TinyFolder folder;
    std::string lines;
    for (size_t i = 0; i < kSamples; ++i) {
      for (size_t letter = 0; letter <= i; ++letter) lines += {static_cast<char>('a' + letter), ' '};
      lines += "\n";
    }
    return TokenizedDataset(*tiny_tokenizer(), {.files = {folder.write("a.txt", lines)}, .max_length = 32});
  }

  TokenizedDataset dataset_ = make_dataset();
  MlmCollator collator_{dataset_, *tiny_tokenizer(), {.probability = 0.5, .max_length = 32}};
};

struct Row {
  int64_t length;
  std::vector<int64_t> input_ids, labels;
  bool operator==(const Row&) const = default;
  bool operator<(const Row& other) const { return input_ids < other.input_ids; }
};

std::vector<Row> rows_of(const StepBatches<Batch>& step) {
  std::vector<Row> rows;
  for (const Batch& batch : step.micro_batches) {
    for (int64_t row = 0; row < batch.rows; ++row) {
      const auto cut = [&](const std::vector<int64_t>& values) {
        const auto begin = values.begin() + row * length_of(batch);
        return std::vector<int64_t>(begin, begin + length_of(batch));
      };
      const auto mask = cut(values_of(batch, "attention_mask"));
      rows.push_back({std::count(mask.begin(), mask.end(), 1), cut(values_of(batch, "input_ids")),
                      cut(values_of(batch, "labels"))});
    }
  }
  return rows;
}

// All ranks' rows of the next step, sorted.
std::vector<Row> next_of_all(std::vector<std::unique_ptr<MlmLoader>>& loaders) {
  std::vector<Row> rows;
  for (auto& loader : loaders) {
    for (Row& row : rows_of(loader->next())) rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

TEST_F(LoaderTest, AStepIsTheNextStretchOfTheEpochsOrder) {
  MlmLoader loader(collator_.samples(), {.micro_batch = 2, .accumulation = 2, .seed = 9});
  EXPECT_EQ(loader.steps_per_epoch(), 6);  // 22 samples, 4 a step
  const auto order = epoch_order({.dataset_size = kSamples, .seed = 9}, 0);
  for (int64_t k = 0; k < 6; ++k) {
    const StepBatches<Batch> step = loader.next();
    EXPECT_EQ(step.epoch, 0);
    EXPECT_EQ(step.step_in_epoch, k);
    EXPECT_EQ(step.samples, k < 5 ? 4 : 2);
    EXPECT_EQ(step.micro_batches.size(), k < 5 ? 2u : 1u);
    const auto rows = rows_of(step);
    int64_t targets = 0;
    for (const Batch& batch : step.micro_batches) targets += batch.target_tokens;
    EXPECT_EQ(step.target_tokens, targets);  // one rank: the global count is its own
    for (size_t i = 0; i < rows.size(); ++i) {
      // Sample s has s + 1 letters, [CLS] and [SEP].
      EXPECT_EQ(rows[i].length, static_cast<int64_t>(order[static_cast<size_t>(4 * k) + i]) + 3);
    }
  }
  const StepBatches<Batch> step = loader.next();  // rolls over
  EXPECT_EQ(step.epoch, 1);
  EXPECT_EQ(step.step_in_epoch, 0);
  EXPECT_EQ(rows_of(step)[0].length,
            static_cast<int64_t>(epoch_order({.dataset_size = kSamples, .seed = 9}, 1)[0]) + 3);
}

TEST_F(LoaderTest, HowAGlobalBatchIsSplitChangesNeitherItsSamplesNorItsMasks) {
  const auto world_of = [&](int64_t world, int64_t micro, int64_t accumulation) {
    std::vector<std::unique_ptr<MlmLoader>> loaders;
    for (int64_t rank = 0; rank < world; ++rank) {
      loaders.push_back(std::make_unique<MlmLoader>(
          collator_.samples(),
          LoaderOptions{.micro_batch = micro, .accumulation = accumulation, .world_size = world, .rank = rank}));
    }
    return loaders;
  };
  auto one = world_of(1, 8, 1), also_one = world_of(1, 1, 8), two = world_of(2, 2, 2), four = world_of(4, 2, 1);
  for (int64_t step = 0; step < 2; ++step) {  // the full steps of an epoch; padding is in the third
    const auto expected = next_of_all(one);
    ASSERT_EQ(expected.size(), 8u);
    EXPECT_EQ(next_of_all(also_one), expected);
    EXPECT_EQ(next_of_all(two), expected);
    EXPECT_EQ(next_of_all(four), expected);
  }
}

TEST_F(LoaderTest, TheLastStepIsEquallyLargeOnEveryRankAndItsTargetsAreCountedOverAll) {
  int64_t targets = 0, said = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    MlmLoader loader(collator_.samples(), {.micro_batch = 1, .accumulation = 4, .world_size = 4, .rank = rank});
    EXPECT_EQ(loader.steps_per_epoch(), 2);  // 22 samples padded to 24, 16 a step
    loader.seek(0, 1);
    const StepBatches<Batch> step = loader.next();
    EXPECT_EQ(step.samples, 8);
    EXPECT_EQ(step.micro_batches.size(), 2u);
    for (const Batch& batch : step.micro_batches) targets += batch.target_tokens;
    said = step.target_tokens;
  }
  EXPECT_EQ(said, targets);
}

TEST_F(LoaderTest, DropLastLeavesTheIncompleteStepOut) {
  MlmLoader loader(collator_.samples(), {.micro_batch = 4, .drop_last = true});
  EXPECT_EQ(loader.steps_per_epoch(), 5);
  loader.seek(0, 4);
  EXPECT_EQ(loader.next().samples, 4);
  EXPECT_EQ(loader.next().epoch, 1);
}

TEST_F(LoaderTest, ASeekEqualsARun) {
  const LoaderOptions options{.micro_batch = 3, .accumulation = 2, .world_size = 2, .rank = 1, .steps_ahead = 2};
  MlmLoader run(collator_.samples(), options), sought(collator_.samples(), options);
  for (int i = 0; i < 5; ++i) run.next();  // 22 samples, 12 a step: 2 steps an epoch, so step 1 of epoch 2 is next
  sought.next();
  sought.seek(2, 1);
  for (int i = 0; i < 4; ++i) {
    const StepBatches<Batch> expected = run.next(), step = sought.next();
    EXPECT_EQ(step.epoch, expected.epoch);
    EXPECT_EQ(step.step_in_epoch, expected.step_in_epoch);
    EXPECT_EQ(rows_of(step), rows_of(expected));
  }
  sought.seek(0, sought.steps_per_epoch());
  EXPECT_EQ(sought.next().epoch, 1);
}

TEST_F(LoaderTest, ASeekBeyondTheEpochSaysHowManyStepsThereAre) {
  MlmLoader loader(collator_.samples(), {.micro_batch = 11});
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { loader.seek(0, 3); }).what,
            "step 3 of epoch 0 does not exist: an epoch has 2 steps");
}

TEST_F(LoaderTest, DestructionNeitherWaitsForTheStepsAheadNorHangs) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) {
    MlmLoader loader(collator_.samples(), {.micro_batch = 1, .accumulation = 20, .steps_ahead = 1'000'000});
    if (i % 2 == 0) loader.next();
    if (i % 3 == 0) loader.seek(i, 0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(LoaderTest, RefusesSizesThatCannotBe) {
  report_of(ErrorKind::kConfig, [&] { MlmLoader(collator_.samples(), {.micro_batch = 0}); });
  report_of(ErrorKind::kConfig, [&] { MlmLoader(collator_.samples(), {.world_size = 2, .rank = 2}); });
  EXPECT_THAT(
      report_of(ErrorKind::kData, [&] { MlmLoader(collator_.samples(), {.micro_batch = 23, .drop_last = true}); }).what,
      testing::HasSubstr("22 samples do not fill one global batch of 23"));
}

}  // namespace
}  // namespace tessera::data::loader_test
