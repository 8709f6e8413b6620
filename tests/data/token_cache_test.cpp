#include "tessera/data/token_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/dataset.h"
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

}  // namespace
}  // namespace tessera::data::token_cache_test
