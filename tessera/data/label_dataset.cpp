#include "tessera/data/label_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/suggest.h"
#include "tessera/data/reader.h"
#include "tessera/data/row_pieces.h"
#include "tessera/data/token_cache.h"

namespace tessera::data {
namespace {

constexpr size_t kMostLabels = 10'000;
constexpr size_t kLabelsShown = 20;  // in a message

template <class Number>
std::optional<Number> number_in(const std::string& text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(number) : std::nullopt;
}

std::string some_labels(const std::vector<std::string>& labels) {
  const size_t shown = std::min(labels.size(), kLabelsShown);
  std::string text =
      fmt::format("{}", fmt::join(labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return shown < labels.size() ? text + ", …" : text;
}

Error unknown_label(const std::string& label, const LabelOptions& options, const std::string& where) {
  const auto nearest = nearest_name(label, options.labels);
  return Error(ErrorKind::kData,
               {fmt::format("'{:.100}' in the column '{}' is none of the labels", label, options.label_column), where,
                (nearest ? fmt::format("did you mean '{}'? ", *nearest) : std::string()) +
                    fmt::format("the labels are {}; data.labels names them", some_labels(options.labels))});
}

bool is_whole_number(const std::string& text) { return number_in<int64_t>(text).has_value(); }

bool is_other_number(const std::string& text) {
  const auto number = number_in<double>(text);
  return number && !is_whole_number(text) && std::isfinite(*number) && text.find_first_of(".eE") != std::string::npos;
}

void add_labels_of(const std::string& file, const std::string& column, std::set<std::string>& seen) {
  for (std::string& label : read_labels(file, column)) {
    if (is_other_number(label)) {
      throw Error(ErrorKind::kData,
                  {fmt::format("'{:.100}' in the column '{}' is a number, but no whole one", label, column), file,
                   "a label is a name or a whole number; predicting numbers is not supported"});
    }
    seen.insert(std::move(label));
    if (seen.size() <= kMostLabels) continue;
    throw Error(ErrorKind::kData, {fmt::format("the column '{}' has more than {} different labels", column,
                                               format_count(static_cast<int64_t>(kMostLabels))),
                                   file, "is this the column of the labels? data.label_column names it"});
  }
}

PairFrame frame_of_pairs(const Tokenizer& tokenizer) {
  if (auto frame = tokenizer.pair_frame()) return *std::move(frame);
  throw Error(ErrorKind::kData, {"the tokenizer does not say how a pair of texts is framed", "data.text_pair_column",
                                 "use a tokenizer.json whose post_processor has a template for pairs"});
}

PairFrame frame_of_texts(const Tokenizer& tokenizer) {
  PairFrame frame;
  for (const int32_t id : tokenizer.frame().before) frame.before.push_back({id, 0});
  for (const int32_t id : tokenizer.frame().after) frame.after.push_back({id, 0});
  return frame;
}

}  // namespace

std::vector<std::string> labels_of_files(const std::vector<std::string>& files, const std::string& label_column) {
  std::set<std::string> seen;
  for (const std::string& file : files) add_labels_of(file, label_column, seen);
  std::vector<std::string> labels(seen.begin(), seen.end());
  if (labels.size() < 2) {
    throw Error(ErrorKind::kData, {fmt::format("all rows have the label '{:.100}', and there is nothing to tell apart",
                                               labels.empty() ? "" : labels.front()),
                                   fmt::format("the column '{}' of {}", label_column, fmt::join(files, ", ")),
                                   "give rows of at least two labels"});
  }
  if (std::all_of(labels.begin(), labels.end(), is_whole_number)) {
    std::sort(labels.begin(), labels.end(), [](const std::string& a, const std::string& b) {
      return *number_in<int64_t>(a) < *number_in<int64_t>(b);
    });
  }
  return labels;
}

int64_t number_of_label(const std::string& label, const std::vector<std::string>& labels) {
  const auto found = std::find(labels.begin(), labels.end(), label);
  if (found != labels.end()) return found - labels.begin();
  if (labels.size() == 2 && (label == "true" || label == "false")) return label == "true" ? 1 : 0;
  const auto number = number_in<int64_t>(label);
  return number && *number >= 0 && *number < static_cast<int64_t>(labels.size()) ? *number : -1;
}

std::pair<size_t, size_t> pair_lengths(size_t first, size_t second, size_t room) {
  if (first + second <= room) return {first, second};
  const size_t shorter = std::min(first, second), half = room / 2;
  const size_t kept = std::min(shorter, half), rest = room - kept;
  return first > second ? std::pair(rest, kept) : std::pair(kept, rest);
}

namespace {

struct LabelledRow {
  std::string first, second;  // of texts that are no pairs the second is empty
  int32_t label = 0;
};

struct LabelledTokens {
  std::vector<int32_t> first, second;  // without frames
  int32_t label = 0;
};

// What files held beside their samples.
struct LabelFacts {
  LabelCounts counts;
  std::vector<uint64_t> file_ends;
};

nlohmann::json to_json(const LabelFacts& facts) {
  return {{"counts", to_facts(facts.counts)}, {"of_label", facts.counts.of_label}, {"file_ends", facts.file_ends}};
}

LabelFacts label_facts_of(const nlohmann::json& from) {
  return {.counts = {text_counts_of(from.at("counts")), from.at("of_label").get<std::vector<int64_t>>()},
          .file_ends = from.at("file_ends")};
}

PairFrame label_frame_of(const Tokenizer& tokenizer, const LabelOptions& options) {
  return options.pair_column.empty() ? frame_of_texts(tokenizer) : frame_of_pairs(tokenizer);
}

class LabelReading {
 public:
  LabelReading(const Tokenizer& tokenizer, const LabelOptions& options, TokenSink& sink)
      : tokenizer_(tokenizer),
        options_(options),
        sink_(sink),
        frame_(label_frame_of(tokenizer, options)),
        room_(static_cast<size_t>(options.max_length) - frame_.size()) {
    facts_.counts.of_label.resize(options.labels.size());
  }

  LabelFacts read_files() {
    RowPieces<LabelledRow, LabelledTokens> rows([this](const LabelledRow& row) { return tokens_of(row); },
                                                [this](const LabelledTokens& tokens) { add(tokens); });
    std::vector<Column> columns = {{options_.label_column, /*holds_labels=*/true}, {options_.text_column}};
    if (has_pairs()) columns.push_back({options_.pair_column});
    for (const std::string& file : options_.files) {
      int64_t number = 0;
      for_each_row(file, columns, [&](std::span<std::string> values) {
        ++number;
        const size_t bytes = values[1].size() + (has_pairs() ? values[2].size() : 0);
        rows.add({.first = std::move(values[1]),
                  .second = has_pairs() ? std::move(values[2]) : "",
                  .label = label_of_row(values[0], fmt::format("{}, row {}", file, number))},
                 bytes);
      });
      rows.finish();
      facts_.file_ends.push_back(samples_);
    }
    if (samples_ > 0) return facts_;
    throw Error(ErrorKind::kData, {"no row has a text", fmt::format("{}", fmt::join(options_.files, ", ")),
                                   fmt::format("check the files and the column '{}'", options_.text_column)});
  }

 private:
  bool has_pairs() const { return !options_.pair_column.empty(); }

  int32_t label_of_row(const std::string& label, const std::string& where) const {
    const int64_t number = number_of_label(label, options_.labels);
    if (number < 0) throw unknown_label(label, options_, where);
    return static_cast<int32_t>(number);
  }

  LabelledTokens tokens_of(const LabelledRow& row) const {
    LabelledTokens tokens{.first = tokenizer_.encode(row.first), .second = {}, .label = row.label};
    if (has_pairs()) tokens.second = tokenizer_.encode(row.second);
    return tokens;
  }

  void add(const LabelledTokens& row) {
    LabelCounts& counts = facts_.counts;
    ++counts.rows;
    const bool is_empty = row.first.empty() && row.second.empty();
    counts.empty_rows += is_empty && options_.drop_empty;
    if (is_empty && options_.drop_empty) return;
    const size_t length = row.first.size() + row.second.size();
    const auto [first_length, second_length] = pair_lengths(row.first.size(), row.second.size(), room_);
    counts.text_tokens += static_cast<int64_t>(length);
    counts.long_rows += length > room_;
    counts.cut_tokens += static_cast<int64_t>(length - first_length - second_length);
    if (const std::optional<int64_t> unknown = tokenizer_.special_ids().unk) {
      for (const auto* const ids : {&row.first, &row.second})
        counts.unknown_tokens += std::count(ids->begin(), ids->end(), static_cast<int32_t>(*unknown));
    }
    ++counts.of_label[static_cast<size_t>(row.label)];
    add_framed(std::span(row.first).first(first_length), std::span(row.second).first(second_length));
    sink_.add({&row.label, 1});
    if (has_pairs()) sink_.add(types_);
    ++samples_;
  }

  void add_framed(std::span<const int32_t> first, std::span<const int32_t> second) {
    tokens_.clear();
    types_.clear();
    const auto add_frame = [&](const std::vector<PairFrame::Token>& part) {
      for (const PairFrame::Token& token : part) {
        tokens_.push_back(token.id);
        types_.push_back(token.type);
      }
    };
    const auto add_text = [&](std::span<const int32_t> ids, int32_t type) {
      tokens_.insert(tokens_.end(), ids.begin(), ids.end());
      types_.insert(types_.end(), ids.size(), type);
    };
    add_frame(frame_.before);
    add_text(first, frame_.first_type);
    add_frame(frame_.between);
    add_text(second, frame_.second_type);
    add_frame(frame_.after);
    sink_.add(tokens_);
  }

  const Tokenizer& tokenizer_;
  const LabelOptions& options_;
  TokenSink& sink_;
  PairFrame frame_;
  size_t room_;  // for text
  LabelFacts facts_;
  uint64_t samples_ = 0;
  std::vector<int32_t> tokens_, types_;  // of the row that is being added
};

TokenKey key_of(const Tokenizer& tokenizer, const LabelOptions& options) {
  return key_of_texts(options.files, tokenizer,
                      {{"of", "labels"},
                       {"columns", {options.text_column, options.pair_column, options.label_column}},
                       {"labels", options.labels},
                       {"max_length", options.max_length},
                       {"drop_empty", options.drop_empty}});
}

}  // namespace

LabelDataset::LabelDataset(const Tokenizer& tokenizer, const LabelOptions& options)
    : sequences_(options.pair_column.empty() ? 2 : 3) {
  require_room_for_text(options.max_length, label_frame_of(tokenizer, options).size());
  LabelFacts facts = label_facts_of(keep_tokens(
      rows_, options.cache, options.name, [&] { return key_of(tokenizer, options); },
      [&](TokenSink& sink) { return to_json(LabelReading(tokenizer, options, sink).read_files()); }));
  counts_ = std::move(facts.counts);
  file_ends_ = std::move(facts.file_ends);
}

}  // namespace tessera::data
