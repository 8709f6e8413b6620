#include "tessera/data/chat_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/conversations.h"
#include "tessera/data/token_cache.h"
#include "tessera/data/two_threads.h"

namespace tessera::data {
namespace {

using Json = nlohmann::ordered_json;

struct ChatSample {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> is_target;
};

// In bytes of the text.
using Span = std::pair<size_t, size_t>;

class Writer {
 public:
  Writer(const Tokenizer& tokenizer, const ChatTemplate* chat) : tokenizer_(tokenizer), chat_(chat) {}

  std::vector<ChatSample> samples_of(const Conversation& conversation) const {
    if (conversation.is_plain()) return {plain(conversation)};
    try {
      return chat_->marks_generated() ? marked(conversation) : located(conversation);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData) throw;
      throw Error(
          ErrorKind::kData,
          {error.report().what, fmt::format("{} ({})", conversation.where, error.report().where), error.report().fix});
    }
  }

 private:
  ChatSample plain(const Conversation& conversation) const {
    const std::string text = conversation.prompt + conversation.completion;
    ChatSample sample = tokens_of(text, {{conversation.prompt.size(), text.size()}});
    const SampleFrame frame = frame_with_eos(tokenizer_);
    sample.tokens.insert(sample.tokens.begin(), frame.before.begin(), frame.before.end());
    sample.is_target.insert(sample.is_target.begin(), frame.before.size(), 0);
    sample.tokens.insert(sample.tokens.end(), frame.after.begin(), frame.after.end());
    sample.is_target.resize(sample.tokens.size(), 1);
    return sample;
  }

  std::vector<ChatSample> marked(const Conversation& conversation) const {
    const auto rendered = chat_->render(conversation.messages, conversation.tools, false);
    return {tokens_of(rendered.text, rendered.generated)};
  }

  // Where the template marks nothing: each answer begins where its prompt ends.
  std::vector<ChatSample> located(const Conversation& conversation) const {
    const std::string whole = text_of(conversation, conversation.messages.size(), false);
    std::vector<Span> answers;
    std::vector<std::string> texts;  // each up to its answer's end
    bool stays = true;               // what is written of the first turns, whatever follows
    for (size_t i = 0; i < conversation.messages.size(); ++i) {
      if (conversation.messages[i].value("role", "") != "assistant") continue;
      const std::string prompt = text_of(conversation, i, true);
      std::string until = text_of(conversation, i + 1, false);
      if (!until.starts_with(prompt)) {
        throw Error(ErrorKind::kData, {"the template writes an answer in another way than the prompt for it, so it "
                                       "cannot be told where it begins",
                                       chat_->name(), "use a template that marks answers with {% generation %}"});
      }
      stays = stays && whole.starts_with(until);
      answers.emplace_back(prompt.size(), until.size());
      texts.push_back(std::move(until));
    }
    if (stays) return {tokens_of(whole, answers)};
    std::vector<ChatSample> alone;
    for (size_t i = 0; i < texts.size(); ++i) alone.push_back(tokens_of(texts[i], {answers[i]}));
    return alone;
  }

  std::string text_of(const Conversation& conversation, size_t count, bool add_generation_prompt) const {
    Json messages = Json::array();
    for (size_t i = 0; i < count; ++i) messages.push_back(conversation.messages[i]);
    return chat_->render(messages, conversation.tools, add_generation_prompt).text;
  }

  ChatSample tokens_of(const std::string& text, const std::vector<Span>& answers) const {
    ChatSample sample{.tokens = tokenizer_.encode(text), .is_target = {}};
    sample.is_target.resize(sample.tokens.size());
    for (const auto& [begin, end] : answers) {
      const size_t first = tokens_before(sample.tokens, text, begin, false);
      const size_t last = tokens_before(sample.tokens, text, end, true);
      for (size_t i = first; i < last; ++i) sample.is_target[i] = 1;
    }
    return sample;
  }

  // How many of the text's tokens lie before a place in it; one that lies on both sides counts where `touching`.
  size_t tokens_before(const std::vector<int32_t>& all, const std::string& text, size_t place, bool touching) const {
    if (place == text.size()) return all.size();
    const std::vector<int32_t> own = tokenizer_.encode(std::string_view(text).substr(0, place));
    const auto same =
        static_cast<size_t>(std::mismatch(own.begin(), own.end(), all.begin(), all.end()).first - own.begin());
    const bool is_cut = same < own.size();
    return is_cut && touching ? std::min(same + 1, all.size()) : same;
  }

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
};

using SamplesOfRow = std::vector<ChatSample>;

// Each row's samples.
std::vector<SamplesOfRow> written(const Writer& writer, const std::vector<Conversation>& rows) {
  return made_on_two_threads(rows, [&](const Conversation& row) { return writer.samples_of(row); });
}

// What files held beside their samples.
struct ChatFacts {
  ChatCounts counts;
  std::string template_name;
  std::vector<uint64_t> file_ends;
};

nlohmann::json to_json(const ChatFacts& facts) {
  const ChatCounts& counts = facts.counts;
  return {{"conversations", counts.conversations},
          {"split", counts.split},
          {"long_samples", counts.long_samples},
          {"without_answer", counts.without_answer},
          {"targets", counts.targets},
          {"template", facts.template_name},
          {"file_ends", facts.file_ends}};
}

ChatFacts chat_facts_of(const nlohmann::json& from) {
  return {.counts = {.conversations = from.at("conversations"),
                     .split = from.at("split"),
                     .long_samples = from.at("long_samples"),
                     .without_answer = from.at("without_answer"),
                     .targets = from.at("targets")},
          .template_name = from.at("template"),
          .file_ends = from.at("file_ends")};
}

ChatFacts write_files(const Tokenizer& tokenizer, const ChatOptions& options, TokenSink& sink) {
  ChatFacts facts;
  ChatCounts& counts = facts.counts;
  uint64_t kept = 0;
  TemplateOfRows chat(tokenizer, options.tokenizer_folder, options.chat_template);
  for (const std::string& file : options.files) {
    const std::vector<Conversation> rows = read_conversations(file);
    for (SamplesOfRow& samples : written(Writer(tokenizer, chat.for_rows(rows)), rows)) {
      ++counts.conversations;
      counts.split += samples.size() > 1;
      for (ChatSample& sample : samples) {
        const auto room = static_cast<size_t>(options.max_length);
        counts.long_samples += sample.tokens.size() > room;
        sample.tokens.resize(std::min(sample.tokens.size(), room));
        sample.is_target.resize(sample.tokens.size());
        const auto targets =
            std::count(sample.is_target.begin() + !sample.is_target.empty(), sample.is_target.end(), 1);
        counts.targets += targets;
        counts.without_answer += targets == 0;
        kept += targets > 0;
        if (targets > 0) sink.add(sample.tokens, sample.is_target);
      }
      samples.clear();
    }
    facts.file_ends.push_back(kept);
  }
  facts.template_name = chat.name();
  if (kept == 0) {
    throw Error(
        ErrorKind::kData,
        {fmt::format("no answer is left to be learned in the first {} tokens of any conversation", options.max_length),
         fmt::format("{}", fmt::join(options.files, ", ")),
         "check that there are messages of the role 'assistant', or raise data.max_length"});
  }
  return facts;
}

TokenKey key_of(const Tokenizer& tokenizer, const ChatOptions& options) {
  TokenKey key = key_of_texts(options.files, tokenizer, {{"of", "conversations"}, {"max_length", options.max_length}});
  add_template(key, options.tokenizer_folder, options.chat_template);
  return key;
}

}  // namespace

ChatDataset::ChatDataset(const Tokenizer& tokenizer, const ChatOptions& options) {
  ChatFacts facts = chat_facts_of(keep_tokens(
      *this, options.cache, options.name, [&] { return key_of(tokenizer, options); },
      [&](TokenSink& sink) { return to_json(write_files(tokenizer, options, sink)); }));
  counts_ = facts.counts;
  template_name_ = std::move(facts.template_name);
  file_ends_ = std::move(facts.file_ends);
}

}  // namespace tessera::data
