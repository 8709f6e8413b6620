// The "pre_tokenizer" of a tokenizer.json.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/data/tokenizer_parts.h"
#include "tessera/data/unicode.h"
#include "tessera/data/unicode_regex.h"

namespace tessera::data {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

constexpr auto kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Range {
  size_t begin, end;
  bool matches;
};

// What becomes of a match and of what lies between two, as `tokenizers` names it.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior behavior_of(const json& part, const std::string& path) {
  const auto name = json_value(part, "behavior", std::string("Isolated"), path);
  constexpr std::pair<const char*, Behavior> kBehaviors[] = {{"Removed", Behavior::kRemoved},
                                                             {"Isolated", Behavior::kIsolated},
                                                             {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                             {"MergedWithNext", Behavior::kMergedWithNext},
                                                             {"Contiguous", Behavior::kContiguous}};
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) return behavior;
  }
  throw Error(ErrorKind::kData, {fmt::format("the behavior '{:.100}' of a pre_tokenizer is not known", name), path,
                                 "use Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous"});
}

// Of the matches of the expression and of what lies between them, those that are words.
std::vector<AlignedText::Bytes> words_of(const std::vector<Range>& ranges, Behavior behavior) {
  std::vector<AlignedText::Bytes> words;
  bool last_matched = false;
  for (const Range& range : ranges) {
    const bool joins_last =
        !words.empty() && ((behavior == Behavior::kMergedWithPrevious && range.matches && !last_matched) ||
                           (behavior == Behavior::kMergedWithNext && !range.matches && last_matched) ||
                           (behavior == Behavior::kContiguous && range.matches == last_matched));
    last_matched = range.matches;
    if (behavior == Behavior::kRemoved && range.matches) continue;
    if (joins_last) {
      words.back().end = range.end;
    } else {
      words.push_back({range.begin, range.end});
    }
  }
  return words;
}

// Matches of the expression and what lies between them.
std::vector<Range> ranges_of(const UnicodeRegex& regex, const std::string& text, bool invert) {
  std::vector<Range> ranges;
  size_t done = 0;
  regex.for_each_match(text, [&](size_t begin, size_t end) {
    if (done < begin) ranges.push_back({done, begin, invert});
    ranges.push_back({begin, end, !invert});
    done = end;
  });
  if (done < text.size()) ranges.push_back({done, text.size(), invert});
  return ranges;
}

// change(word, is_first): changes the word, plain or aligned; cut(text): where its words are, in bytes.
template <class Step, class Change, class Cut>
Step change_and_cut(const Change& change, const Cut& cut) {
  return {[=](std::string word, bool is_first) {
            change(word, is_first);
            Words words;
            for (const auto& [begin, end] : cut(word)) {
              const bool all = end - begin == word.size();
              words.push_back(all ? std::move(word) : word.substr(begin, end - begin));
            }
            return words;
          },
          [=](AlignedText word, bool is_first) {
            change(word, is_first);
            std::vector<AlignedText> words;
            for (const auto& [begin, end] : cut(word.text())) words.push_back(word.slice(begin, end));
            return words;
          }};
}

constexpr auto unchanged = [](auto&, bool) {};
constexpr auto whole = [](const std::string& text) { return std::vector<AlignedText::Bytes>{{0, text.size()}}; };

const std::string& text_of(const std::string& text) { return text; }
const std::string& text_of(const AlignedText& text) { return text.text(); }
void put_before(std::string& text, const std::string& prefix) { text.insert(0, prefix); }
void put_before(AlignedText& text, const std::string& prefix) { text.prepend(prefix); }

void replace_spaces(std::string& text, const std::string& with) {
  std::string replaced;
  replaced.reserve(text.size());
  for (const char c : text) c == ' ' ? replaced += with : replaced += c;
  text = std::move(replaced);
}
void replace_spaces(AlignedText& text, const std::string& with) {
  std::vector<AlignedText::Bytes> spaces;
  for (size_t at = 0; (at = text.text().find(' ', at)) != std::string::npos; ++at) spaces.push_back({at, at + 1});
  text.replace(spaces, with);
}

std::string escaped(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-&~#").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

template <class Step>
Step split_by(const std::string& pattern, Behavior behavior, bool invert, const std::string& path) {
  const auto regex = std::make_shared<const UnicodeRegex>(pattern, path);
  return change_and_cut<Step>(unchanged, [regex, behavior, invert](const std::string& text) {
    return words_of(ranges_of(*regex, text, invert), behavior);
  });
}

std::string pattern_of(const json& part, const std::string& path) {
  const json pattern = part.value("pattern", json());
  if (pattern.is_string()) return escaped(pattern.get<std::string>());
  if (pattern.is_object() && pattern.contains("String")) {
    return escaped(json_value(pattern, "String", std::string(), path));
  }
  return json_value(pattern, "Regex", std::string("(?!)"), path);
}

// "▁" for each space and, as the scheme says, before the text; words begin with it.
template <class Step>
Step metaspace(const json& part, const std::string& path) {
  const auto replacement = json_value(part, "replacement", std::string("▁"), path);
  const bool by_flag = json_value(part, "add_prefix_space", true, path);
  const auto scheme = json_value(part, "prepend_scheme", std::string(by_flag ? "always" : "never"), path);
  const bool splits = json_value(part, "split", true, path);
  if (replacement.empty() || decode_utf8(replacement).size() != 1) {
    throw Error(ErrorKind::kData, {"the replacement of a Metaspace is not one character", path, "check the file"});
  }
  const auto change = [=](auto& text, bool is_first) {
    replace_spaces(text, replacement);
    const bool prepends = scheme == "always" || (scheme == "first" && is_first);
    if (prepends && !text_of(text).starts_with(replacement)) put_before(text, replacement);
  };
  const auto cut = [=](const std::string& text) {
    std::vector<AlignedText::Bytes> words;
    size_t begin = 0;
    for (size_t at = text.find(replacement, 1); at != std::string::npos; at = text.find(replacement, at + 1)) {
      words.push_back({begin, at});
      begin = at;
    }
    words.push_back({begin, text.size()});
    return words;
  };
  return splits ? change_and_cut<Step>(change, cut) : change_and_cut<Step>(change, whole);
}

}  // namespace

std::optional<std::string> bytes_of_byte_level(std::string_view text) {
  // Printable bytes stand for themselves, the others in order for the characters from U+0100 on.
  static const auto byte_of = [] {
    std::array<int, 512> table{};
    table.fill(-1);
    int others = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      table[static_cast<size_t>(printable ? byte : others++)] = byte;
    }
    return table;
  }();
  std::string bytes;
  for (const char32_t c : decode_utf8(text)) {
    if (c >= byte_of.size() || byte_of[c] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of[c]);
  }
  return bytes;
}

PreTokenizer::PreTokenizer(const json& part, const std::string& path) {
  if (!part.is_null()) add(part, path);
}

void PreTokenizer::add(const json& part, const std::string& path) {
  const auto type = json_value(part, "type", std::string(), path);
  const auto flag = [&](const char* key, bool otherwise) { return json_value(part, key, otherwise, path); };
  if (type == "Sequence") {
    for (const json& each : part.value("pretokenizers", json::array())) add(each, path);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (flag("add_prefix_space", true)) {
      const auto change = [](auto& text, bool) {
        if (!text_of(text).starts_with(' ')) put_before(text, " ");
      };
      steps_.push_back(change_and_cut<Step>(change, whole));
    }
    if (flag("use_regex", true)) steps_.push_back(split_by<Step>(kGpt2Pattern, Behavior::kIsolated, false, path));
  } else if (type == "Split") {
    steps_.push_back(split_by<Step>(pattern_of(part, path), behavior_of(part, path), flag("invert", false), path));
  } else if (type == "Metaspace") {
    steps_.push_back(metaspace<Step>(part, path));
  } else if (type == "Digits") {
    const bool one_by_one = flag("individual_digits", false);
    steps_.push_back(split_by<Step>(R"(\p{N})", one_by_one ? Behavior::kIsolated : Behavior::kContiguous, false, path));
  } else if (type == "Punctuation") {
    steps_.push_back(split_by<Step>(R"([!-/:-@\[-`{-~]|\p{P})", behavior_of(part, path), false, path));
  } else if (type == "Whitespace") {
    steps_.push_back(split_by<Step>(R"(\w+|[^\w\s]+)", Behavior::kRemoved, /*invert=*/true, path));
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(split_by<Step>(R"(\s)", Behavior::kRemoved, false, path));
  } else {
    throw Error(ErrorKind::kData, {fmt::format("the pre_tokenizer '{:.100}' is not supported", type), path,
                                   "supported: Sequence, ByteLevel, Split, Metaspace, Digits, Punctuation, "
                                   "Whitespace, WhitespaceSplit"});
  }
}

void PreTokenizer::split(std::string text, bool is_first, const Visitor& visit) const {
  if (text.empty()) return;  // nothing is put before it either
  Words words{std::move(text)};
  for (const Step& step : steps_) {
    Words next;
    for (size_t i = 0; i < words.size(); ++i) {
      for (std::string& word : step.words(std::move(words[i]), is_first && i == 0)) next.push_back(std::move(word));
    }
    words = std::move(next);
  }
  for (const std::string& word : words) {
    if (!word.empty()) visit(word);
  }
}

std::vector<AlignedText> PreTokenizer::split(AlignedText text, bool is_first) const {
  std::vector<AlignedText> words{std::move(text)};
  for (const Step& step : steps_) {
    std::vector<AlignedText> next;
    for (size_t i = 0; i < words.size(); ++i) {
      for (AlignedText& word : step.aligned(std::move(words[i]), is_first && i == 0)) next.push_back(std::move(word));
    }
    words = std::move(next);
  }
  std::erase_if(words, [](const AlignedText& word) { return word.empty(); });
  return words;
}

}  // namespace tessera::data
