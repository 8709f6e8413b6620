#include "tessera/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/reader.h"

namespace tessera::data {

namespace {

// The samples of some consecutive rows.
struct Part {
  std::vector<int32_t> tokens;
  std::vector<size_t> lengths;
  bool has_text = false;  // some sample holds a token that is not special
};

Part tokenize(const Tokenizer& tokenizer, std::span<const std::string> rows, const DatasetOptions& options) {
  const SpecialIds& special = tokenizer.special_ids();
  const auto room = static_cast<size_t>(options.max_length - 2);
  Part part;
  for (const std::string& row : rows) {
    std::vector<int32_t> ids = tokenizer.encode(row);
    if (ids.empty() && options.drop_empty) continue;
    if (ids.size() > room) ids.resize(room);
    part.has_text =
        part.has_text || std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return !tokenizer.is_special(id); });
    part.tokens.push_back(static_cast<int32_t>(special.cls));
    part.tokens.insert(part.tokens.end(), ids.begin(), ids.end());
    part.tokens.push_back(static_cast<int32_t>(special.sep));
    part.lengths.push_back(ids.size() + 2);
  }
  return part;
}

// The two halves of the rows, one on a thread of its own.
std::pair<Part, Part> tokenize_on_two_threads(const Tokenizer& tokenizer, std::span<const std::string> rows,
                                              const DatasetOptions& options) {
  const size_t half = rows.size() / 2;
  Part second;
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      second = tokenize(tokenizer, rows.subspan(half), options);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  Part first;
  try {
    first = tokenize(tokenizer, rows.first(half), options);
  } catch (...) {
    thread.join();
    throw;
  }
  thread.join();
  if (failure) std::rethrow_exception(failure);
  return {std::move(first), std::move(second)};
}

}  // namespace

TokenizedDataset::TokenizedDataset(const Tokenizer& tokenizer, const DatasetOptions& options) {
  if (options.max_length < 3) {
    throw Error(ErrorKind::kConfig, {fmt::format("data.max_length is {}", options.max_length), "the run's data",
                                     "3 or more: [CLS], [SEP] and at least one token of text"});
  }
  bool has_text = false;
  for (const std::string& file : options.files) {
    const std::vector<std::string> rows = read_texts(file, options.text_column);
    const auto [first, second] = tokenize_on_two_threads(tokenizer, rows, options);
    for (const Part* part : {&first, &second}) {
      tokens_.insert(tokens_.end(), part->tokens.begin(), part->tokens.end());
      for (const size_t length : part->lengths) offsets_.push_back(offsets_.back() + length);
      has_text = has_text || part->has_text;
    }
  }
  if (!has_text) {
    throw Error(ErrorKind::kData, {"there is no text: not one row gives a token that is in the vocabulary",
                                   fmt::format("{}", fmt::join(options.files, ", ")),
                                   fmt::format("check the files and the column '{}'", options.text_column)});
  }
}

}  // namespace tessera::data
