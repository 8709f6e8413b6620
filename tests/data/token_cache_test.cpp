#include "tessera/data/token_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/chat_dataset.h"
#include "tessera/data/dataset.h"
#include "tessera/data/label_dataset.h"
#include "tessera/data/pair_dataset.h"
#include "tessera/data/preference_dataset.h"
#include "tiny_folder.h"

namespace tessera::data::token_cache_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class TokenCache : public testing::Test {
 protected:
  // Samples of one, two and no tokens; a file of the text is the key's.
  CachedTokens samples(const std::string& text = "text", const json& options = {}) {
    const TokenKey key{.files = {folder_.write("text.txt", text)}, .options = options};
    return cached_tokens(cache_, key, "data.train", [&](TokenSink& sink) {
      ++made_;
      sink.add(std::vector<int32_t>{7}, std::vector<uint8_t>{0});
      sink.add(std::vector<int32_t>{8, 9}, std::vector<uint8_t>{0, 1});
      sink.add({});
      return json{{"rows", 3}};
    });
  }

  fs::path entry() const {
    for (const auto& each : fs::directory_iterator(cache_)) {
      if (each.is_directory()) return each.path();
    }
    ADD_FAILURE() << "nothing is kept";
    return {};
  }

  TinyFolder folder_;
  std::string cache_ = folder_.file("cache");
  std::atomic<int> made_ = 0;
};

void expect_as_made(const CachedTokens& found) {
  ASSERT_EQ(found.samples.size(), 3u);
  EXPECT_THAT(found.samples.sample(0), ElementsAre(7));
  EXPECT_THAT(found.samples.sample(1), ElementsAre(8, 9));
  EXPECT_TRUE(found.samples.sample(2).empty());
  EXPECT_FALSE(found.samples.is_target(0, 0));
  EXPECT_FALSE(found.samples.is_target(1, 0));
  EXPECT_TRUE(found.samples.is_target(1, 1));
  EXPECT_EQ(found.facts, json({{"rows", 3}}));
}

TEST_F(TokenCache, IsMadeOnceAndFoundAgain) {
  for (int i = 0; i < 3; ++i) expect_as_made(samples());
  EXPECT_EQ(made_, 1);
}

TEST_F(TokenCache, IsMadeAnewWhenAnythingChanges) {
  samples();
  samples("Text");
  EXPECT_EQ(made_, 2);
  samples("text", {{"max_length", 3}});
  EXPECT_EQ(made_, 3);
  samples();
  EXPECT_EQ(made_, 3);
}

TEST_F(TokenCache, WhatIsDamagedIsMadeAnew) {
  int expected = 1;
  samples();
  for (const char* const name : {"tokens.bin", "offsets.bin", "targets.bin", "facts.json"}) {
    for (const bool flip : {true, false}) {
      const std::string path = (entry() / name).string();
      if (flip) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.put('\x5a');
      } else {
        fs::resize_file(path, fs::file_size(path) / 2);
      }
      expect_as_made(samples());
      EXPECT_EQ(made_, ++expected) << name << (flip ? " flipped" : " cut");
    }
  }
}

TEST_F(TokenCache, ANumberThatChangedAmongTheFactsIsDamageToo) {
  samples();
  const std::string path = (entry() / "facts.json").string();
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t at = text.find("\"rows\": 3");
  ASSERT_NE(at, std::string::npos);
  text[at + 8] = '4';
  std::ofstream(path) << text;
  expect_as_made(samples());
  EXPECT_EQ(made_, 2);
}

TEST_F(TokenCache, WhatAKilledProcessLeftIsTakenOver) {
  samples();
  const fs::path aside = entry().string() + ".making";
  fs::rename(entry(), aside);
  expect_as_made(samples());
  EXPECT_EQ(made_, 2);
  EXPECT_FALSE(fs::exists(aside));
}

TEST_F(TokenCache, NothingIsLeftWhereTokenisingFails) {
  const TokenKey key{.files = {folder_.write("text.txt", "text")}, .options = {}};
  const auto fails = [](TokenSink& sink) -> json {
    sink.add(std::vector<int32_t>{7});
    throw Error(ErrorKind::kData, {"the text is damaged", "text.txt:1", ""});
  };
  EXPECT_THROW(cached_tokens(cache_, key, "data.train", fails), Error);
  for (const auto& each : fs::directory_iterator(cache_)) EXPECT_THAT(each.path().string(), testing::EndsWith(".lock"));
}

TEST_F(TokenCache, OfSeveralThatWantItOneMakesIt) {
  folder_.write("text.txt", "text");
  const TokenKey key{.files = {folder_.file("text.txt")}, .options = {}};
  std::vector<std::thread> processes;
  for (int i = 0; i < 4; ++i) {
    processes.emplace_back([&] {
      const CachedTokens found = cached_tokens(cache_, key, "data.train", [&](TokenSink& sink) {
        ++made_;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        sink.add(std::vector<int32_t>{7});
        return json();
      });
      EXPECT_THAT(found.samples.sample(0), ElementsAre(7));
    });
  }
  for (std::thread& process : processes) process.join();
  EXPECT_EQ(made_, 1);
}

TEST_F(TokenCache, AWaitForOneThatGetsNoFurtherEnds) {
  samples();
  const fs::path place = entry(), lock = place.string() + ".lock";
  fs::remove_all(place);
  const int held = open(lock.c_str(), O_RDWR);
  ASSERT_EQ(flock(held, LOCK_EX), 0);
  setenv("TESSERA_TIMEOUT", "1", 1);
  try {
    samples();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("tokenises data.train, and got no further for 1 s"));
    EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(getpid())));
  }
  unsetenv("TESSERA_TIMEOUT");
  close(held);
  expect_as_made(samples());
}

TEST_F(TokenCache, ADatasetFromItIsThatFromMemory) {
  folder_.write("vocab.txt", tiny_vocab_txt());
  const auto tokenizer = load_tokenizer(folder_.path());
  DatasetOptions options{
      .files = {folder_.write("one.txt", "ab c\n\nabc abc abc abc\n"), folder_.write("two.txt", "c\n")},
      .max_length = 6};
  const TokenizedDataset in_memory(*tokenizer, options);
  options.cache = cache_;
  for (int i = 0; i < 2; ++i) {
    const TokenizedDataset kept(*tokenizer, options);
    ASSERT_EQ(kept.size(), in_memory.size());
    for (size_t sample = 0; sample < kept.size(); ++sample) {
      EXPECT_THAT(kept.sample(sample), testing::ElementsAreArray(in_memory.sample(sample)));
      EXPECT_TRUE(kept.is_target(sample, 0));
    }
    EXPECT_EQ(kept.counts().rows, in_memory.counts().rows);
    EXPECT_EQ(kept.counts().cut_tokens, in_memory.counts().cut_tokens);
    EXPECT_THAT(kept.file_ends(), ElementsAre(in_memory.size() - 1, in_memory.size()));
    EXPECT_EQ(kept.file_ends(), in_memory.file_ends());
  }
}

std::vector<int32_t> tokens(std::span<const int32_t> sample) { return {sample.begin(), sample.end()}; }

void expect_same(const TokenColumn& kept, const TokenColumn& held) {
  ASSERT_EQ(kept.size(), held.size());
  for (size_t row = 0; row < kept.size(); ++row) {
    EXPECT_EQ(tokens(kept.sample(row)), tokens(held.sample(row)));
    for (size_t i = 0; i < kept.sample(row).size(); ++i) {
      EXPECT_EQ(kept.is_target(row, static_cast<int64_t>(i)), held.is_target(row, static_cast<int64_t>(i)));
    }
  }
}

// Datasets of rows with several sequences: each is made three times, in memory, into the folder and from it; then with
// each of the other options, which the kept one must not be taken for.
class KeptRows : public TokenCache {
 protected:
  template <class Dataset, class Options>
  void expect_kept(Options options, const std::vector<Options>& others,
                   const std::function<void(const Dataset& kept, const Dataset& held)>& expect_equal) {
    folder_.write("vocab.txt", tiny_vocab_txt());
    const auto tokenizer = load_tokenizer(folder_.path());
    const Dataset held(*tokenizer, options);
    options.cache = cache_;
    for (int i = 0; i < 2; ++i) {
      const Dataset kept(*tokenizer, options);
      expect_equal(kept, held);
      EXPECT_EQ(kept.file_ends(), held.file_ends());
      EXPECT_EQ(entries(), 1);
    }
    int expected = 1;
    for (Options other : others) {
      other.cache = cache_;
      const Dataset made(*tokenizer, other);
      EXPECT_EQ(entries(), ++expected);
    }
  }

  int entries() const {
    int count = 0;
    for (const auto& each : fs::directory_iterator(cache_)) count += each.is_directory();
    return count;
  }
};

TEST_F(KeptRows, OfPairsAreThoseFromMemoryWithTheTargetsTexts) {
  PairOptions options{
      .files = {folder_.write("a.csv", "x,y\nab c,c\nb,äb 😀\n"), folder_.write("b.csv", "x,y\n,a\nabc,b\n")},
      .source_column = "x",
      .target_column = "y",
      .keeps_target_texts = true};
  std::vector<PairOptions> others(4, options);
  others[0].max_source = 4;
  others[1].max_target = 4;
  others[2].source_prefix = "a";
  others[3].keeps_target_texts = false;
  expect_kept<PairDataset, PairOptions>(options, others, [](const PairDataset& kept, const PairDataset& held) {
    ASSERT_EQ(kept.size(), 3u);
    expect_same(kept.sources(), held.sources());
    expect_same(kept.targets(), held.targets());
    EXPECT_EQ(kept.target_text(1), "äb 😀");
    EXPECT_EQ(kept.counts().rows, 4);
    EXPECT_EQ(kept.counts().empty_rows, 1);
    EXPECT_THAT(kept.file_ends(), ElementsAre(2, 3));
  });
}

TEST_F(KeptRows, OfLabelledPairsAreThoseFromMemory) {
  LabelOptions options{.files = {folder_.write("a.csv", "x,y,label\nab c,c,no\nb,b,yes\n,,no\n")},
                       .text_column = "x",
                       .pair_column = "y",
                       .labels = {"no", "yes"}};
  std::vector<LabelOptions> others(4, options);
  others[0].max_length = 5;
  others[1].labels = {"yes", "no"};
  others[2].drop_empty = false;
  others[3].pair_column = "";
  expect_kept<LabelDataset, LabelOptions>(options, others, [](const LabelDataset& kept, const LabelDataset& held) {
    ASSERT_EQ(kept.size(), 2u);
    expect_same(kept.texts(), held.texts());
    for (size_t row = 0; row < kept.size(); ++row) {
      EXPECT_EQ(kept.label(row), static_cast<int64_t>(row));
      EXPECT_EQ(tokens(kept.token_types(row)), tokens(held.token_types(row)));
      EXPECT_FALSE(kept.token_types(row).empty());
    }
    EXPECT_EQ(kept.counts().of_label, held.counts().of_label);
    EXPECT_EQ(kept.counts().text_tokens, held.counts().text_tokens);
    EXPECT_EQ(kept.counts().empty_rows, 1);
  });
}

TEST_F(KeptRows, OfPreferencesAreThoseFromMemory) {
  PreferenceOptions options{.files = {folder_.write("a.csv", "prompt,chosen,rejected\na,b c,d\nb,c,c\n")},
                            .tokenizer_folder = folder_.path()};
  std::vector<PreferenceOptions> others(1, options);
  others[0].max_length = 4;
  expect_kept<PreferenceDataset, PreferenceOptions>(options, others,
                                                    [](const PreferenceDataset& kept, const PreferenceDataset& held) {
                                                      ASSERT_EQ(kept.size(), 1u);
                                                      expect_same(kept.chosen(), held.chosen());
                                                      expect_same(kept.rejected(), held.rejected());
                                                      EXPECT_FALSE(kept.chosen().is_target(0, 0));
                                                      EXPECT_TRUE(kept.chosen().is_target(0, 2));
                                                      EXPECT_EQ(kept.counts().same_answers, 1);
                                                      EXPECT_EQ(kept.counts().targets, held.counts().targets);
                                                    });
}

TEST_F(KeptRows, OfOneKindAreNotTakenForThoseOfAnother) {
  folder_.write("vocab.txt", tiny_vocab_txt());
  const auto tokenizer = load_tokenizer(folder_.path());
  const std::vector<std::string> files = {
      folder_.write("a.jsonl", R"({"prompt": "a", "completion": "b", "chosen": "c", "rejected": "d"})")};
  const ChatDataset chats(*tokenizer, {.files = files, .tokenizer_folder = folder_.path(), .cache = cache_});
  const PreferenceDataset preferences(*tokenizer,
                                      {.files = files, .tokenizer_folder = folder_.path(), .cache = cache_});
  EXPECT_EQ(entries(), 2);
  EXPECT_EQ(preferences.size(), 1u);
}

}  // namespace
}  // namespace tessera::data::token_cache_test
