#include "tessera/data/preference_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/preferences.h"
#include "tessera/data/token_cache.h"
#include "tessera/data/two_threads.h"

namespace tessera::data {
namespace {

using TokenIds = std::vector<int32_t>;

// Prompt and answer together; the first `prompt` tokens are the prompt's.
struct TokenPair {
  TokenIds chosen, rejected;
  size_t prompt = 0;
  bool is_merged = false;
};

size_t shared_tokens(const TokenIds& a, const TokenIds& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

class PairWriter {
 public:
  PairWriter(const Tokenizer& tokenizer, const ChatTemplate* chat) : tokenizer_(tokenizer), chat_(chat) {}

  TokenPair tokens_of(const Preference& row) const {
    const TokenIds prompt = row.is_plain() ? begun(text(row.prompt)) : written(row, nullptr);
    TokenPair pair;
    pair.chosen = row.is_plain() ? whole(row, row.chosen) : written(row, &row.chosen);
    pair.rejected = row.is_plain() ? whole(row, row.rejected) : written(row, &row.rejected);
    pair.prompt = std::min(shared_tokens(prompt, pair.chosen), shared_tokens(prompt, pair.rejected));
    pair.is_merged = pair.prompt < prompt.size();
    return pair;
  }

 private:
  static const std::string& text(const nlohmann::ordered_json& value) { return value.get_ref<const std::string&>(); }

  TokenIds begun(const std::string& of) const {
    TokenIds tokens = tokenizer_.frame().before;
    const TokenIds own = tokenizer_.encode(of);
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  }

  // An answer of no text has no token of the end either: it is none.
  TokenIds whole(const Preference& row, const nlohmann::ordered_json& answer) const {
    if (text(answer).empty()) return begun(text(row.prompt));
    TokenIds tokens = begun(text(row.prompt) + text(answer));
    const TokenIds after = frame_with_eos(tokenizer_).after;
    const bool ends_itself = after.size() == 1 && !tokens.empty() && tokens.back() == after.back();
    if (!ends_itself) tokens.insert(tokens.end(), after.begin(), after.end());
    return tokens;
  }

  // `answer`: null, the prompt alone.
  TokenIds written(const Preference& row, const nlohmann::ordered_json* answer) const {
    nlohmann::ordered_json messages = row.prompt;
    if (answer != nullptr) messages.insert(messages.end(), answer->begin(), answer->end());
    try {
      return tokenizer_.encode(chat_->render(messages, row.tools, /*add_generation_prompt=*/answer == nullptr).text);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData) throw;
      throw Error(ErrorKind::kData,
                  {error.report().what, fmt::format("{} ({})", row.where, error.report().where), error.report().fix});
    }
  }

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
};

std::vector<TokenPair> pairs_of(const PairWriter& writer, const std::vector<Preference>& rows) {
  return made_on_two_threads(rows, [&](const Preference& row) { return writer.tokens_of(row); });
}

void add_answer(TokenSink& sink, const TokenIds& tokens, size_t prompt) {
  std::vector<uint8_t> targets(tokens.size(), 1);
  std::fill_n(targets.begin(), prompt, 0);
  sink.add(tokens, targets);
}

// What files held beside their samples.
struct PreferenceFacts {
  PreferenceCounts counts;
  std::string template_name;
  std::vector<uint64_t> file_ends;
};

nlohmann::json to_json(const PreferenceFacts& facts) {
  const PreferenceCounts& counts = facts.counts;
  return {{"rows", counts.rows},
          {"cut", counts.cut},
          {"without_room", counts.without_room},
          {"empty_answers", counts.empty_answers},
          {"same_answers", counts.same_answers},
          {"merged", counts.merged},
          {"targets", counts.targets},
          {"template", facts.template_name},
          {"file_ends", facts.file_ends}};
}

PreferenceFacts preference_facts_of(const nlohmann::json& from) {
  return {.counts = {.rows = from.at("rows"),
                     .cut = from.at("cut"),
                     .without_room = from.at("without_room"),
                     .empty_answers = from.at("empty_answers"),
                     .same_answers = from.at("same_answers"),
                     .merged = from.at("merged"),
                     .targets = from.at("targets")},
          .template_name = from.at("template"),
          .file_ends = from.at("file_ends")};
}

// Whether it is left, and was added.
bool add_pair(TokenPair& pair, size_t room, PreferenceCounts& counts, TokenSink& sink) {
  ++counts.rows;
  if (pair.prompt == pair.chosen.size() || pair.prompt == pair.rejected.size()) {
    ++counts.empty_answers;
    return false;
  }
  if (pair.prompt >= room) {
    ++counts.without_room;
    return false;
  }
  const bool is_cut = std::max(pair.chosen.size(), pair.rejected.size()) > room;
  pair.chosen.resize(std::min(pair.chosen.size(), room));
  pair.rejected.resize(std::min(pair.rejected.size(), room));
  if (pair.chosen == pair.rejected) {
    ++counts.same_answers;
    return false;
  }
  counts.cut += is_cut;
  counts.merged += pair.is_merged;
  counts.targets += static_cast<int64_t>(pair.chosen.size() + pair.rejected.size() - 2 * pair.prompt);
  add_answer(sink, pair.chosen, pair.prompt);
  add_answer(sink, pair.rejected, pair.prompt);
  return true;
}

PreferenceFacts write_files(const Tokenizer& tokenizer, const PreferenceOptions& options, TokenSink& sink) {
  PreferenceFacts facts;
  uint64_t kept = 0;
  TemplateOfRows chat(tokenizer, options.tokenizer_folder, options.chat_template);
  for (const std::string& file : options.files) {
    const std::vector<Preference> rows = read_preferences(file);
    for (TokenPair& pair : pairs_of(PairWriter(tokenizer, chat.for_rows(rows)), rows)) {
      kept += add_pair(pair, static_cast<size_t>(options.max_length), facts.counts, sink);
    }
    facts.file_ends.push_back(kept);
  }
  facts.template_name = chat.name();
  if (kept > 0) return facts;
  const PreferenceCounts& counts = facts.counts;
  throw Error(
      ErrorKind::kData,
      {fmt::format("no row is left of {}: in {} the prompt fills data.max_length, in {} an answer is empty, in {} "
                   "both answers are the same",
                   counts.rows, counts.without_room, counts.empty_answers, counts.same_answers),
       fmt::format("{}", fmt::join(options.files, ", ")), "check the rows, or raise data.max_length"});
}

TokenKey key_of(const Tokenizer& tokenizer, const PreferenceOptions& options) {
  TokenKey key = key_of_texts(options.files, tokenizer, {{"of", "preferences"}, {"max_length", options.max_length}});
  add_template(key, options.tokenizer_folder, options.chat_template);
  return key;
}

}  // namespace

PreferenceDataset::PreferenceDataset(const Tokenizer& tokenizer, const PreferenceOptions& options) {
  PreferenceFacts facts = preference_facts_of(keep_tokens(
      pairs_, options.cache, options.name, [&] { return key_of(tokenizer, options); },
      [&](TokenSink& sink) { return to_json(write_files(tokenizer, options, sink)); }));
  counts_ = facts.counts;
  template_name_ = std::move(facts.template_name);
  file_ends_ = std::move(facts.file_ends);
}

}  // namespace tessera::data
