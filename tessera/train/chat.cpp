#include "tessera/train/chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/text_stream.h"
#include "tessera/train/text_model.h"

namespace tessera::train {
namespace {

using nlohmann::ordered_json;

ordered_json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

// An adapter that was trained by another template has it beside its weights.
std::string folder_of_template(const TextModelOptions& options) {
  if (!options.tokenizer.empty()) return options.tokenizer;
  const bool has_own = std::filesystem::exists(std::filesystem::path(options.adapter) / "chat_template.jinja");
  return !options.adapter.empty() && has_own ? options.adapter : options.model;
}

class Talk {
 public:
  explicit Talk(const ChatOptions& options)
      : options_(options),
        model_(load_text_model(options, /*may_encode=*/false, "tessera chat talks with")),
        template_(*model_.tokenizer, folder_of_template(model_.options), options.chat_template, "--template") {
    reset();
  }

  void reset() {
    messages_ = ordered_json::array();
    if (!options_.system.empty()) messages_.push_back(message("system", options_.system));
  }

  // Prints the answer as it comes.
  void ask(const std::string& question) {
    messages_.push_back(message("user", question));
    const std::string prompt = template_.render(messages_, nullptr, /*add_generation_prompt=*/true).text;
    const std::vector<int32_t> ids = model_.tokenizer->encode(prompt);
    log_debug("the model reads {}", fmt::join(ids, " "));
    const auto how = options_for(ids.size());
    if (how) {
      answer(prompt, ids, *how);
    } else {
      messages_.erase(messages_.size() - 1);
    }
  }

 private:
  // Nothing where the conversation is too long, and the user was told.
  std::optional<models::GenerationOptions> options_for(size_t prompt) const {
    try {
      return generation_options(model_, prompt, kAnswerTokens, "tessera chat");
    } catch (const Error& error) {
      if (!options_.at_terminal) throw;
      log_error("{}\n/reset begins a new conversation", error.what());
      return std::nullopt;
    }
  }

  void answer(const std::string& prompt, const std::vector<int32_t>& ids, models::GenerationOptions how) {
    data::TextStream stream(*model_.tokenizer);
    how.seed += turn_++;
    how.kept = &kept_;
    const int64_t before = kept_.computed;
    how.on_token = [&](size_t /*row*/, int32_t token) { print_now(stream.add(token)); };
    if (const auto end = end_of_answers(prompt)) how.stop_tokens.push_back(*end);
    const std::vector<int32_t> tokens = models::generate(*model_.writer, ids, how);
    log_debug("the model computed {} positions", kept_.computed - before);
    print_now(stream.finish() + "\n");
    messages_.push_back(message("assistant", model_.tokenizer->decode(tokens, /*skip_special=*/true)));
  }

  // The special token that the template puts behind an answer: a model that was tuned with another template than its
  // own ends its answers so, whatever its generation_config.json says.
  std::optional<int32_t> end_of_answers(const std::string& prompt) const {
    const std::string answer = "x";
    ordered_json answered = messages_;
    answered.push_back(message("assistant", answer));
    const std::string text = template_.render(answered, nullptr, /*add_generation_prompt=*/false).text;
    if (!text.starts_with(prompt + answer)) return std::nullopt;
    const std::vector<int32_t> behind = model_.tokenizer->encode(text.substr(prompt.size() + answer.size()));
    if (behind.empty() || !model_.tokenizer->is_special(behind.front())) return std::nullopt;
    return behind.front();
  }

  const ChatOptions& options_;
  TextModel model_;
  data::ChatTemplate template_;
  ordered_json messages_;
  models::KeptText kept_;  // of the turn before, whose beginning the template may have written anew
  uint64_t turn_ = 0;
};

}  // namespace

void chat(const ChatOptions& options, std::istream& input) {
  Talk talk(options);
  std::string line;
  for (;;) {
    if (options.at_terminal) print_now("> ");
    if (!std::getline(input, line)) {
      if (options.at_terminal) print_now("\n");
      return;
    }
    if (line.ends_with('\r')) line.pop_back();
    if (line == "/exit") return;
    if (line == "/reset") {
      talk.reset();
    } else if (!line.empty()) {
      talk.ask(line);
    }
  }
}

}  // namespace tessera::train
