// A folder with a WordPiece vocabulary of 30 tokens, and files of text beside it; removed at the end of the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

class WithTinyVocabulary : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tessera_data_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";  // ids 0 to 4
    for (char c = 'a'; c < 'a' + 24; ++c) vocabulary += std::string(1, c) + "\n";
    write("vocab.txt", vocabulary + "##s\n");  // ids 5 to 28, and 29
    tokenizer_ = load_tokenizer(folder_.string());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }

  std::filesystem::path folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace tessera::data
