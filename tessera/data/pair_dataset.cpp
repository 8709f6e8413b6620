#include "tessera/data/pair_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/reader.h"
#include "tessera/data/row_pieces.h"
#include "tessera/data/token_cache.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

struct TextPair {
  std::string source, target;
};

struct PairTokens {
  std::vector<int32_t> source, target;  // without frames
  std::vector<int32_t> text;            // the target's code points, where they are kept
  bool is_empty = false;
};

// What files held beside their samples.
struct PairFacts {
  PairCounts counts;
  std::vector<uint64_t> file_ends;
};

nlohmann::json to_json(const PairFacts& facts) {
  const PairCounts& counts = facts.counts;
  return {{"rows", counts.rows},
          {"empty_rows", counts.empty_rows},
          {"cut_sources", counts.cut_sources},
          {"cut_targets", counts.cut_targets},
          {"file_ends", facts.file_ends}};
}

PairFacts pair_facts_of(const nlohmann::json& from) {
  return {.counts = {.rows = from.at("rows"),
                     .empty_rows = from.at("empty_rows"),
                     .cut_sources = from.at("cut_sources"),
                     .cut_targets = from.at("cut_targets")},
          .file_ends = from.at("file_ends")};
}

void require_room(const Tokenizer& tokenizer, int64_t most, const char* key) {
  const auto framing = static_cast<int64_t>(tokenizer.frame().size());
  if (most > framing) return;
  throw Error(ErrorKind::kConfig,
              {fmt::format("{} is {}", key, most), "the run's data", fmt::format("use at least {}", framing + 1)});
}

class PairReading {
 public:
  PairReading(const Tokenizer& tokenizer, const PairOptions& options, TokenSink& sink)
      : tokenizer_(tokenizer), options_(options), sink_(sink) {}

  PairFacts read_files() {
    const Column columns[] = {{options_.source_column}, {options_.target_column}};
    RowPieces<TextPair, PairTokens> rows([this](const TextPair& row) { return tokens_of(row); },
                                         [this](const PairTokens& tokens) { add(tokens); });
    for (const std::string& file : options_.files) {
      for_each_row(file, columns, [&](std::span<std::string> values) {
        const size_t bytes = values[0].size() + values[1].size();
        rows.add({std::move(values[0]), std::move(values[1])}, bytes);
      });
      rows.finish();
      facts_.file_ends.push_back(pairs_);
    }
    if (pairs_ > 0) return facts_;
    throw Error(ErrorKind::kData,
                {"no row has both a text to read and one to write", fmt::format("{}", fmt::join(options_.files, ", ")),
                 fmt::format("check the columns '{}' and '{}'", options_.source_column, options_.target_column)});
  }

 private:
  PairTokens tokens_of(const TextPair& row) const {
    PairTokens tokens{.source = tokenizer_.encode(options_.source_prefix + row.source),
                      .target = tokenizer_.encode(row.target),
                      .text = {}};
    tokens.is_empty = tokens.target.empty() || row.source.empty();
    if (options_.keeps_target_texts) {
      const std::u32string text = decode_utf8(row.target);
      tokens.text.assign(text.begin(), text.end());
    }
    return tokens;
  }

  void add(const PairTokens& tokens) {
    ++facts_.counts.rows;
    if (tokens.is_empty) {
      ++facts_.counts.empty_rows;
      return;
    }
    facts_.counts.cut_sources += add_framed(tokens.source, options_.max_source);
    facts_.counts.cut_targets += add_framed(tokens.target, options_.max_target);
    if (options_.keeps_target_texts) sink_.add(tokens.text);
    ++pairs_;
  }

  // The text's ids in the tokenizer's frame, at most `most` of them, the frame whole. Whether some were cut.
  bool add_framed(const std::vector<int32_t>& ids, int64_t most) {
    const SampleFrame& frame = tokenizer_.frame();
    const size_t room = static_cast<size_t>(most) - frame.size();
    std::vector<int32_t> all = frame.before;
    all.insert(all.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), room)));
    all.insert(all.end(), frame.after.begin(), frame.after.end());
    sink_.add(all);
    return ids.size() > room;
  }

  const Tokenizer& tokenizer_;
  const PairOptions& options_;
  TokenSink& sink_;
  PairFacts facts_;
  uint64_t pairs_ = 0;
};

TokenKey key_of(const Tokenizer& tokenizer, const PairOptions& options) {
  return key_of_texts(options.files, tokenizer,
                      {{"of", "pairs"},
                       {"columns", {options.source_column, options.target_column}},
                       {"prefix", options.source_prefix},
                       {"max_lengths", {options.max_source, options.max_target}},
                       {"target_texts", options.keeps_target_texts}});
}

}  // namespace

PairDataset::PairDataset(const Tokenizer& tokenizer, const PairOptions& options)
    : sequences_(options.keeps_target_texts ? 3 : 2) {
  require_room(tokenizer, options.max_source, "data.max_length");
  require_room(tokenizer, options.max_target, "data.max_target_length");
  PairFacts facts = pair_facts_of(keep_tokens(
      rows_, options.cache, options.name, [&] { return key_of(tokenizer, options); },
      [&](TokenSink& sink) { return to_json(PairReading(tokenizer, options, sink).read_files()); }));
  counts_ = facts.counts;
  file_ends_ = std::move(facts.file_ends);
}

std::string PairDataset::target_text(size_t i) const {
  TESSERA_INVARIANT(sequences_ == 3);
  const auto code_points = TokenColumn(rows_, {.of = sequences_, .place = 2}).sample(i);
  std::string text;
  append_utf8(std::u32string(code_points.begin(), code_points.end()), text);
  return text;
}

}  // namespace tessera::data
