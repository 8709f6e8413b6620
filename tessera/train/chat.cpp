#include "tessera/train/chat.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/text_stream.h"
#include "tessera/train/rank_run.h"
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

models::GenerationOptions how_of(const TextModel& model, const std::vector<int32_t>& prompt) {
  models::GenerationOptions how = generation_options(model, prompt.size(), kAnswerTokens, "tessera chat");
  models::check_generation({prompt}, how);
  return how;
}

struct ChatModel {
  TextModel model;
  data::ChatTemplate chat_template;
};

// All that the options say makes sense.
ChatModel checked_model_of(const ChatOptions& options) {
  TextModel model = read_text_model(options, /*may_encode=*/false, "tessera chat talks with");
  data::ChatTemplate chat_template(*model.tokenizer, folder_of_template(model.options), options.chat_template,
                                   "--template");
  how_of(model, /*prompt=*/{0});
  return {std::move(model), std::move(chat_template)};
}

// What rank 0 tells the others to do next.
enum class Turn : int64_t { kWait, kAnswer, kEnd };

Turn told_by_rank_0(comm::Group& world, Turn turn) {
  if (world.size() == 1) return turn;
  const at::Tensor number = at::full({1}, static_cast<int64_t>(turn), at::kLong);
  world.start_broadcast(number, /*root=*/0, "what comes next in the chat").finish();
  return static_cast<Turn>(number.item<int64_t>());
}

// Rank 0's part: the conversation.
class Talk {
 public:
  Talk(const ChatOptions& options, ChatModel& chat, comm::Group& world)
      : options_(options), model_(chat.model), world_(world), template_(chat.chat_template) {
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
    const auto how = options_for(ids);
    if (how) {
      answer(prompt, ids, *how);
    } else {
      messages_.erase(messages_.size() - 1);
    }
  }

 private:
  // Nothing where the conversation is too long, and the user was told.
  std::optional<models::GenerationOptions> options_for(const std::vector<int32_t>& prompt) const {
    try {
      return how_of(model_, prompt);
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
    told_by_rank_0(world_, Turn::kAnswer);
    const std::vector<int32_t> tokens = write_text(model_, ids, how);
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
  TextModel& model_;
  comm::Group& world_;
  const data::ChatTemplate& template_;
  ordered_json messages_;
  models::KeptText kept_;  // of the turn before, whose beginning the template may have written anew
  uint64_t turn_ = 0;
};

// While rank 0 waits for a line, it says so now and then: the others' waits have a time-out, and a rank that dies is to
// be noticed.
std::optional<std::string> next_line(InputLines& input, comm::Group& world) {
  constexpr std::chrono::milliseconds kNowAndThen{500};
  for (;;) {
    if (auto line = input.next(kNowAndThen)) return line;
    if (input.has_ended()) return std::nullopt;
    told_by_rank_0(world, Turn::kWait);
  }
}

void talk(const ChatOptions& options, InputLines& input, Talk& conversation, comm::Group& world) {
  for (;;) {
    if (options.at_terminal) print_now("> ");
    const std::optional<std::string> line = next_line(input, world);
    if (!line && options.at_terminal) print_now("\n");
    if (!line || *line == "/exit") return;
    if (*line == "/reset") {
      conversation.reset();
    } else if (!line->empty()) {
      conversation.ask(*line);
    }
  }
}

void chat_in(const ChatOptions& options, InputLines& input, const std::shared_ptr<comm::Group>& world) {
  ChatModel chat = checked_model_of(options);
  load_weights(chat.model, world);
  if (world->rank() == 0) {
    Talk conversation(options, chat, *world);
    talk(options, input, conversation, *world);
    told_by_rank_0(*world, Turn::kEnd);
    return;
  }
  for (Turn turn = Turn::kWait; turn != Turn::kEnd; turn = told_by_rank_0(*world, turn)) {
    if (turn == Turn::kAnswer) take_part(chat.model);
  }
}

}  // namespace

int chat(const ChatOptions& options, InputLines& input) {
  return run_as_rank([&](const std::shared_ptr<comm::Group>& world) { chat_in(options, input, world); });
}

void check_chat(const ChatOptions& options) { checked_model_of(options); }

}  // namespace tessera::train
