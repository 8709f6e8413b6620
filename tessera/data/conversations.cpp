#include "tessera/data/conversations.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/trimmed.h"
#include "tessera/data/json_rows.h"
#include "tessera/data/reader.h"

namespace tessera::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kForms =
    "a row is {\"messages\": […]}, {\"conversations\": […]}, {\"conversation\": […]}, {\"instruction\": …, \"output\": "
    "…}, "
    "{\"prompt\": …, \"completion\": …} or {\"text\": \"### Human: …### Assistant: …\"}";

[[noreturn]] void refuse_row(const std::string& what, const std::string& where) {
  throw Error(ErrorKind::kData, {what, where, kForms});
}

// The text under a key; empty where there is none or null.
std::string text_under(const Json& row, const char* key, const std::string& where) {
  const auto found = row.find(key);
  if (found == row.end() || found->is_null()) return "";
  if (!found->is_string())
    refuse_row(
        fmt::format("'{}' is {:.100}, not a string", key, found->dump(-1, ' ', false, Json::error_handler_t::replace)),
        where);
  return found->get<std::string>();
}

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

void add_system(const std::string& text, Json& messages) {
  if (!text.empty()) messages.push_back(message("system", text));
}

const Json& list_under(const Json& row, const char* key, const std::string& where) {
  const Json& list = row.at(key);
  const bool holds_objects =
      list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& each) { return each.is_object(); });
  if (!holds_objects || list.empty()) refuse_row(fmt::format("'{}' is not a list of messages", key), where);
  return list;
}

Json messages_under(const Json& row, const char* key, const std::string& where) {
  const Json& list = list_under(row, key, where);
  for (const Json& each : list) {
    const auto role = each.find("role");
    if (role == each.end() || !role->is_string()) refuse_row(fmt::format("a message of '{}' has no role", key), where);
  }
  return list;
}

Json of_sharegpt(const Json& row, const std::string& where) {
  constexpr std::pair<const char*, const char*> kRoles[] = {
      {"human", "user"},        {"user", "user"},        {"gpt", "assistant"},          {"assistant", "assistant"},
      {"chatgpt", "assistant"}, {"bard", "assistant"},   {"bing", "assistant"},         {"system", "system"},
      {"tool", "tool"},         {"observation", "tool"}, {"function_call", "assistant"}};
  Json messages = Json::array();
  add_system(text_under(row, "system", where), messages);
  for (const Json& each : list_under(row, "conversations", where)) {
    const std::string from = text_under(each, each.contains("role") ? "role" : "from", where);
    const auto* const role =
        std::find_if(std::begin(kRoles), std::end(kRoles), [&](const auto& known) { return from == known.first; });
    if (role == std::end(kRoles))
      refuse_row(fmt::format("a message is from '{:.100}', which is none of human, gpt, system and tool", from), where);
    messages.push_back(message(role->second, text_under(each, each.contains("content") ? "content" : "value", where)));
  }
  return messages;
}

Json of_xtuner(const Json& row, const std::string& where) {
  Json messages = Json::array();
  for (const Json& turn : list_under(row, "conversation", where)) {
    add_system(text_under(turn, "system", where), messages);
    messages.push_back(message("user", text_under(turn, "input", where)));
    messages.push_back(message("assistant", text_under(turn, "output", where)));
  }
  return messages;
}

// With "instruction" and "input" beside the content that both make, for templates that know them.
Json of_alpaca(const Json& row, const std::string& where) {
  Json messages = Json::array();
  add_system(text_under(row, "system", where), messages);
  for (const Json& turn : row.contains("history") && row.at("history").is_array() ? row.at("history") : Json::array()) {
    if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string()) {
      refuse_row("'history' is not a list of pairs of a question and an answer", where);
    }
    messages.push_back(message("user", turn[0].get<std::string>()));
    messages.push_back(message("assistant", turn[1].get<std::string>()));
  }
  const std::string instruction = text_under(row, "instruction", where), input = text_under(row, "input", where);
  Json question = message("user", input.empty() ? instruction : instruction + "\n" + input);
  question["instruction"] = instruction;
  question["input"] = input;
  messages.push_back(std::move(question));
  messages.push_back(message("assistant", text_under(row, "output", where)));
  return messages;
}

std::string trimmed(const std::string& text) { return std::string(tessera::trimmed(text, " \t\r\n")); }

// "### Human: …### Assistant: …": parts that begin otherwise are none, and a last question without an answer is left
// out (as XTuner's oasst1_map_fn does).
std::optional<Json> of_guanaco(const Json& row) {
  const auto found = row.find("text");
  if (found == row.end() || !found->is_string()) return std::nullopt;
  const auto& text = found->get_ref<const std::string&>();
  if (text.find("### Human:") == std::string::npos) return std::nullopt;
  std::vector<std::string> turns;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find("###", at), text.size());
    const std::string part = trimmed(text.substr(at, end - at));
    for (const char* const speaker : {"Human:", "Assistant:"}) {
      if (part.starts_with(speaker)) turns.push_back(trimmed(part.substr(std::string(speaker).size())));
    }
    at = end + 3;
  }
  if (turns.size() % 2 == 1) turns.pop_back();
  Json messages = Json::array();
  for (size_t i = 0; i < turns.size(); ++i) messages.push_back(message(i % 2 == 0 ? "user" : "assistant", turns[i]));
  return messages;
}

void read_prompt_and_completion(const Json& row, Conversation& conversation) {
  const std::string& where = conversation.where;
  if (row.at("prompt").is_string() && row.at("completion").is_string()) {
    conversation.prompt = row.at("prompt").get<std::string>();
    conversation.completion = row.at("completion").get<std::string>();
    return;
  }
  conversation.messages = messages_under(row, "prompt", where);
  for (Json& each : messages_under(row, "completion", where)) conversation.messages.push_back(std::move(each));
}

}  // namespace

Conversation conversation_of(const Json& row, const std::string& where) {
  if (!row.is_object()) refuse_row("it is not an object", where);
  Conversation conversation{.messages = nullptr, .tools = nullptr, .prompt = "", .completion = "", .where = where};
  if (const auto tools = row.find("tools"); tools != row.end() && tools->is_array()) conversation.tools = *tools;
  if (row.contains("messages")) {
    conversation.messages = messages_under(row, "messages", where);
  } else if (row.contains("conversations")) {
    conversation.messages = of_sharegpt(row, where);
  } else if (row.contains("conversation")) {
    conversation.messages = of_xtuner(row, where);
  } else if (row.contains("instruction") && row.contains("output")) {
    conversation.messages = of_alpaca(row, where);
  } else if (row.contains("prompt") && row.contains("completion")) {
    read_prompt_and_completion(row, conversation);
  } else if (auto messages = of_guanaco(row)) {
    conversation.messages = *std::move(messages);
  } else {
    std::string keys;
    for (const auto& [key, value] : row.items()) keys += (keys.empty() ? "'" : ", '") + key + "'";
    refuse_row(fmt::format("it is no conversation: its keys are {:.300}", keys.empty() ? "none" : keys), where);
  }
  return conversation;
}

std::vector<Conversation> read_conversations(const std::string& path) {
  check_file(path);
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension != ".jsonl" && extension != ".json") {
    throw Error(ErrorKind::kData,
                {fmt::format("conversations are not read from '{}' files", extension), path, "use .jsonl or .json"});
  }
  std::vector<Conversation> all;
  for_each_json_row(path,
                    [&](const Json& row, const std::string& where) { all.push_back(conversation_of(row, where)); });
  return all;
}

}  // namespace tessera::data
