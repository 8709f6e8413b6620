// A folder that goes with the test, and a tokenizer small enough to work out its ids by hand.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/collator.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

class TinyFolder {
 public:
  TinyFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-data-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no folder " << name;
    path_ = name;
  }
  ~TinyFolder() { std::filesystem::remove_all(path_); }
  TinyFolder(const TinyFolder&) = delete;
  TinyFolder& operator=(const TinyFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(file(name), std::ios::binary) << content;
    return file(name);
  }

 private:
  std::string path_;
};

// Ids are places in this list: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, a 5, b 6, …, z 30, ##a 31, …, ##z 56, and
// what `more` adds from 57 on.
inline std::string tiny_vocab_txt(const std::vector<std::string>& more = {}) {
  std::string lines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (char letter = 'a'; letter <= 'z'; ++letter) lines += std::string(1, letter) + "\n";
  for (char letter = 'a'; letter <= 'z'; ++letter) lines += "##" + std::string(1, letter) + "\n";
  for (const std::string& piece : more) lines += piece + "\n";
  return lines;
}

inline std::unique_ptr<Tokenizer> tiny_tokenizer() {
  const TinyFolder folder;
  folder.write("vocab.txt", tiny_vocab_txt());
  return load_tokenizer(folder.path());
}

// Of a batch of tokens.
inline const std::vector<int64_t>& values_of(const Batch& batch, const char* name) {
  return batch.arrays.at(name).values;
}
inline int64_t length_of(const Batch& batch) { return batch.arrays.at("input_ids").shape.at(1); }

// What an action throws; fails the test when it throws nothing.
template <class Action>
ErrorReport report_of(ErrorKind kind, Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    return error.report();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace tessera::data
