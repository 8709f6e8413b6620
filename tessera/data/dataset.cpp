#include "tessera/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/data/reader.h"

namespace tessera::data {

namespace {

// The samples of some consecutive rows.
struct Part {
  std::vector<int32_t> tokens;
  std::vector<size_t> lengths;
  TextCounts counts;
  bool has_text = false;  // some sample holds a token that is not special

  void add_sample(const SampleFrame& frame, std::span<const int32_t> ids) {
    tokens.insert(tokens.end(), frame.before.begin(), frame.before.end());
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    tokens.insert(tokens.end(), frame.after.begin(), frame.after.end());
    lengths.push_back(ids.size() + frame.size());
  }
};

void add_counts(TextCounts& sum, const TextCounts& counts) {
  sum.rows += counts.rows;
  sum.empty_rows += counts.empty_rows;
  sum.long_rows += counts.long_rows;
  sum.text_tokens += counts.text_tokens;
  sum.cut_tokens += counts.cut_tokens;
  sum.unknown_tokens += counts.unknown_tokens;
}

SampleFrame frame_of(const Tokenizer& tokenizer, const DatasetOptions& options) {
  return options.ends_with_eos ? frame_with_eos(tokenizer) : tokenizer.frame();
}

Part tokenize(const Tokenizer& tokenizer, std::span<const std::string> rows, const DatasetOptions& options) {
  const SampleFrame frame = frame_of(tokenizer, options);
  const std::optional<int64_t> unknown = tokenizer.special_ids().unk;
  const size_t room = static_cast<size_t>(options.max_length) - frame.size();
  Part part;
  for (const std::string& row : rows) {
    const std::vector<int32_t> ids = tokenizer.encode(row);
    ++part.counts.rows;
    part.counts.empty_rows += ids.empty();
    part.counts.long_rows += ids.size() > room;
    part.counts.text_tokens += static_cast<int64_t>(ids.size());
    if (unknown) part.counts.unknown_tokens += std::count(ids.begin(), ids.end(), static_cast<int32_t>(*unknown));
    if (ids.empty() && options.drop_empty) continue;
    part.has_text =
        part.has_text || std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return !tokenizer.is_special(id); });
    std::span<const int32_t> rest(ids);
    do {
      const size_t length = std::min(rest.size(), room);
      part.add_sample(frame, rest.first(length));
      rest = rest.subspan(length);
    } while (!rest.empty() && options.long_text == LongText::kChunk);
    part.counts.cut_tokens += static_cast<int64_t>(rest.size());
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
  const auto framing = static_cast<int64_t>(frame_of(tokenizer, options).size());
  if (options.max_length <= framing) {
    throw Error(ErrorKind::kConfig, {fmt::format("data.max_length is {}", options.max_length), "the run's data",
                                     fmt::format("use at least {}: {} and one token of text", framing + 1,
                                                 count_of(framing, "special token"))});
  }
  bool has_text = false;
  for (const std::string& file : options.files) {
    const std::vector<std::string> rows = read_texts(file, options.text_column);
    const auto [first, second] = tokenize_on_two_threads(tokenizer, rows, options);
    for (const Part* part : {&first, &second}) {
      std::span<const int32_t> rest(part->tokens);
      for (const size_t length : part->lengths) {
        add(rest.first(length));
        rest = rest.subspan(length);
      }
      add_counts(counts_, part->counts);
      has_text = has_text || part->has_text;
    }
  }
  if (!has_text) {
    throw Error(ErrorKind::kData, {"there is no text: no row has a token that is in the vocabulary",
                                   fmt::format("{}", fmt::join(options.files, ", ")),
                                   fmt::format("check the files and the column '{}'", options.text_column)});
  }
}

}  // namespace tessera::data
