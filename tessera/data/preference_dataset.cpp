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
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()).first -
                             a.begin());
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
  std::vector<TokenPair> all(rows.size());
  on_two_threads(rows.size(), [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) all[i] = writer.tokens_of(rows[i]);
  });
  return all;
}

void add_answer(TokenSamples& samples, const TokenIds& tokens, size_t prompt) {
  std::vector<uint8_t> targets(tokens.size(), 1);
  std::fill_n(targets.begin(), prompt, 0);
  samples.add(tokens, targets);
}

}  // namespace

PreferenceDataset::PreferenceDataset(const Tokenizer& tokenizer, const PreferenceOptions& options) {
  const auto room = static_cast<size_t>(options.max_length);
  std::optional<ChatTemplate> chat;
  for (const std::string& file : options.files) {
    const std::vector<Preference> rows = read_preferences(file);
    const bool needs_template = !std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.is_plain(); });
    if (needs_template && !chat) chat.emplace(tokenizer, options.tokenizer_folder, options.chat_template);
    for (TokenPair& pair : pairs_of(PairWriter(tokenizer, chat ? &*chat : nullptr), rows)) {
      ++counts_.rows;
      if (pair.prompt == pair.chosen.size() || pair.prompt == pair.rejected.size()) {
        ++counts_.empty_answers;
        continue;
      }
      if (pair.prompt >= room) {
        ++counts_.without_room;
        continue;
      }
      const bool is_cut = std::max(pair.chosen.size(), pair.rejected.size()) > room;
      pair.chosen.resize(std::min(pair.chosen.size(), room));
      pair.rejected.resize(std::min(pair.rejected.size(), room));
      if (pair.chosen == pair.rejected) {
        ++counts_.same_answers;
        continue;
      }
      counts_.cut += is_cut;
      counts_.merged += pair.is_merged;
      counts_.targets += static_cast<int64_t>(pair.chosen.size() + pair.rejected.size() - 2 * pair.prompt);
      add_answer(chosen_, pair.chosen, pair.prompt);
      add_answer(rejected_, pair.rejected, pair.prompt);
    }
    file_ends_.push_back(size());
  }
  if (chat) template_name_ = chat->name();
  if (size() > 0) return;
  throw Error(
      ErrorKind::kData,
      {fmt::format("no row is left of {}: in {} the prompt fills data.max_length, in {} an answer is empty, in {} "
                   "both answers are the same",
                   counts_.rows, counts_.without_room, counts_.empty_answers, counts_.same_answers),
       fmt::format("{}", fmt::join(options.files, ", ")), "check the rows, or raise data.max_length"});
}

}  // namespace tessera::data
