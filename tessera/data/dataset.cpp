#include "tessera/data/dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/data/reader.h"
#include "tessera/data/token_cache.h"
#include "tessera/data/two_threads.h"

namespace tessera::data {

namespace {

using nlohmann::json;

// What files held beside their samples.
struct TextFacts {
  TextCounts counts;
  bool has_text = false;  // some sample holds a token that is not special
  std::vector<uint64_t> file_ends;
};

json to_json(const TextFacts& facts) { return {{"counts", to_facts(facts.counts)}, {"file_ends", facts.file_ends}}; }

TextFacts text_facts_of(const json& from) {
  return {.counts = text_counts_of(from.at("counts")), .has_text = true, .file_ends = from.at("file_ends")};
}

// The samples of some consecutive rows.
struct Part {
  std::vector<int32_t> tokens;
  std::vector<size_t> lengths;
  TextCounts counts;
  bool has_text = false;

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

// The samples of files, piece by piece, into a sink.
class Tokenizing {
 public:
  Tokenizing(const Tokenizer& tokenizer, const DatasetOptions& options, TokenSink& sink)
      : tokenizer_(tokenizer), options_(options), sink_(sink) {}

  void read_files() {
    for (const std::string& file : options_.files) {
      for_each_text(file, options_.text_column, [this](std::string text) {
        bytes_ += text.size() + sizeof text;
        rows_.push_back(std::move(text));
        if (bytes_ >= kPieceBytes) tokenize_rows();
      });
      tokenize_rows();
      facts_.file_ends.push_back(samples_);
    }
  }

  const TextFacts& facts() const { return facts_; }

 private:
  static constexpr size_t kPieceBytes = 4U << 20;

  void tokenize_rows() {
    std::array<Part, 2> halves;
    on_two_threads(rows_.size(), [&](size_t from, size_t to) {
      halves[from == 0 ? 0 : 1] = tokenize(tokenizer_, std::span(rows_).subspan(from, to - from), options_);
    });
    for (const Part& part : halves) {
      std::span<const int32_t> rest(part.tokens);
      for (const size_t length : part.lengths) {
        sink_.add(rest.first(length));
        rest = rest.subspan(length);
      }
      samples_ += part.lengths.size();
      add_counts(facts_.counts, part.counts);
      facts_.has_text = facts_.has_text || part.has_text;
    }
    rows_.clear();
    bytes_ = 0;
  }

  const Tokenizer& tokenizer_;
  const DatasetOptions& options_;
  TokenSink& sink_;
  std::vector<std::string> rows_;
  size_t bytes_ = 0;
  uint64_t samples_ = 0;
  TextFacts facts_;
};

TextFacts tokenize_files(const Tokenizer& tokenizer, const DatasetOptions& options, TokenSink& sink) {
  Tokenizing tokenizing(tokenizer, options, sink);
  tokenizing.read_files();
  if (tokenizing.facts().has_text) return tokenizing.facts();
  throw Error(ErrorKind::kData, {"there is no text: no row has a token that is in the vocabulary",
                                 fmt::format("{}", fmt::join(options.files, ", ")),
                                 fmt::format("check the files and the column '{}'", options.text_column)});
}

TokenKey key_of(const Tokenizer& tokenizer, const DatasetOptions& options) {
  return key_of_texts(options.files, tokenizer,
                      {{"of", "texts"},
                       {"text_column", options.text_column},
                       {"max_length", options.max_length},
                       {"drop_empty", options.drop_empty},
                       {"long_text", static_cast<int>(options.long_text)},
                       {"eos", options.ends_with_eos}});
}

}  // namespace

void require_room_for_text(int64_t max_length, size_t frame) {
  if (max_length > static_cast<int64_t>(frame)) return;
  throw Error(ErrorKind::kConfig, {fmt::format("data.max_length is {}", max_length), "the run's data",
                                   fmt::format("use at least {}: {} and one token of text", frame + 1,
                                               count_of(static_cast<int64_t>(frame), "special token"))});
}

TokenizedDataset::TokenizedDataset(const Tokenizer& tokenizer, const DatasetOptions& options) {
  require_room_for_text(options.max_length, frame_of(tokenizer, options).size());
  TextFacts facts = text_facts_of(keep_tokens(
      *this, options.cache, options.name, [&] { return key_of(tokenizer, options); },
      [&](TokenSink& sink) { return to_json(tokenize_files(tokenizer, options, sink)); }));
  counts_ = facts.counts;
  file_ends_ = std::move(facts.file_ends);
}

}  // namespace tessera::data
