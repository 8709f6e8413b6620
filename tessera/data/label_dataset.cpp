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

struct LabelDataset::Reading {
  const Tokenizer& tokenizer;
  const LabelOptions& options;
  PairFrame frame;
  bool has_pairs = false;
  size_t room = 0;  // for text
};

// Both texts without their frame; of texts that are no pairs the second is empty.
void LabelDataset::add_row(const Reading& reading, std::vector<int32_t> first, std::vector<int32_t> second) {
  const size_t length = first.size() + second.size();
  const auto [first_length, second_length] = pair_lengths(first.size(), second.size(), reading.room);
  counts_.text_tokens += static_cast<int64_t>(length);
  counts_.long_rows += length > reading.room;
  counts_.cut_tokens += static_cast<int64_t>(length - first_length - second_length);
  if (const std::optional<int64_t> unknown = reading.tokenizer.special_ids().unk) {
    for (const auto* const ids : {&first, &second}) {
      counts_.unknown_tokens += std::count(ids->begin(), ids->end(), static_cast<int32_t>(*unknown));
    }
  }
  first.resize(first_length);
  second.resize(second_length);

  std::vector<int32_t> tokens, types;
  const auto add_frame = [&](const std::vector<PairFrame::Token>& part) {
    for (const PairFrame::Token& token : part) {
      tokens.push_back(token.id);
      types.push_back(token.type);
    }
  };
  const auto add_text = [&](const std::vector<int32_t>& ids, int32_t type) {
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    types.insert(types.end(), ids.size(), type);
  };
  add_frame(reading.frame.before);
  add_text(first, reading.frame.first_type);
  add_frame(reading.frame.between);
  add_text(second, reading.frame.second_type);
  add_frame(reading.frame.after);
  add(tokens);
  if (reading.has_pairs) types_.add(types);
}

void LabelDataset::add_file(const Reading& reading, const std::string& file) {
  const LabelOptions& options = reading.options;
  const std::vector<std::string> texts = read_texts(file, options.text_column),
                                 labels = read_labels(file, options.label_column);
  const std::vector<std::string> second_texts =
      reading.has_pairs ? read_texts(file, options.pair_column) : std::vector<std::string>(texts.size());
  TESSERA_INVARIANT(texts.size() == labels.size() && texts.size() == second_texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    ++counts_.rows;
    const int64_t number = number_of_label(labels[i], options.labels);
    if (number < 0) throw unknown_label(labels[i], options, fmt::format("{}, row {}", file, i + 1));
    std::vector<int32_t> first = reading.tokenizer.encode(texts[i]), second;
    if (reading.has_pairs) second = reading.tokenizer.encode(second_texts[i]);
    if (first.empty() && second.empty() && options.drop_empty) {
      ++counts_.empty_rows;
      continue;
    }
    add_row(reading, std::move(first), std::move(second));
    labels_.push_back(number);
    ++counts_.of_label[static_cast<size_t>(number)];
  }
}

LabelDataset::LabelDataset(const Tokenizer& tokenizer, const LabelOptions& options) {
  Reading reading{.tokenizer = tokenizer, .options = options, .frame = {}, .has_pairs = !options.pair_column.empty()};
  reading.frame = reading.has_pairs ? frame_of_pairs(tokenizer) : frame_of_texts(tokenizer);
  require_room_for_text(options.max_length, reading.frame.size());
  reading.room = static_cast<size_t>(options.max_length) - reading.frame.size();
  counts_.of_label.resize(options.labels.size());
  for (const std::string& file : options.files) {
    add_file(reading, file);
    file_ends_.push_back(size());
  }
  if (size() > 0) return;
  throw Error(ErrorKind::kData, {"no row has a text", fmt::format("{}", fmt::join(options.files, ", ")),
                                 fmt::format("check the files and the column '{}'", options.text_column)});
}

}  // namespace tessera::data
