#include "tessera/data/chat_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/data/tokenizer_files.h"

namespace tessera::data {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct Source {
  std::string name, text;
};

// "chat_template" of a tokenizer_config.json: a text, or a list of named ones.
std::string of_config(const json& value, const std::string& path) {
  if (value.is_string()) return value.get<std::string>();
  for (const json& each : value.is_array() ? value : json::array()) {
    if (json_value(each, "name", std::string(), path) == "default")
      return json_value(each, "template", std::string(), path);
  }
  return "";
}

std::optional<Source> folders_own(const std::string& folder, const json& config, const std::string& config_path) {
  const std::string file = folder + "/chat_template.jinja";
  if (fs::is_regular_file(file)) return Source{file, read_input_file(file)};
  const json value = config.is_object() ? config.value("chat_template", json()) : json();
  const std::string text = of_config(value, config_path);
  if (text.empty()) return std::nullopt;
  return Source{config_path, text};
}

Source chosen(const std::string& choice, const std::string& key) {
  if (const auto* const built_in = chat_templates().lookup(choice)) {
    return {fmt::format("the built-in template {}", built_in->name), built_in->make()};
  }
  const bool is_path = choice.find('/') != std::string::npos || fs::exists(choice);
  if (!is_path) chat_templates().find(choice, key, ErrorKind::kConfig);  // says what there is
  return {choice, read_input_file(choice)};
}

nlohmann::ordered_json token_texts(const Tokenizer& tokenizer, const json& config, const std::string& path) {
  nlohmann::ordered_json texts = nlohmann::ordered_json::object();
  for (const auto& [key, role] : kSpecialRoles) {
    const std::optional<int64_t>& id = tokenizer.special_ids().*role;
    const json value = config.is_object() ? config.value(key, json()) : json();
    if (value.is_string()) {
      texts[key] = value.get<std::string>();
    } else if (value.is_object()) {
      texts[key] = json_value(value, "content", std::string(), path);
    } else if (id) {
      const std::array<int32_t, 1> one{static_cast<int32_t>(*id)};
      texts[key] = tokenizer.decode(one, /*skip_special=*/false);
    }
  }
  return texts;
}

}  // namespace

std::string chat_template_text(const std::string& choice) { return chosen(choice, kChatTemplateKey).text; }

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const std::string& folder, const std::string& choice,
                           const std::string& key) {
  const std::string config_path = folder + "/tokenizer_config.json";
  const json config = fs::is_regular_file(config_path) ? read_json_file(config_path) : json();
  std::optional<Source> source = choice.empty() ? folders_own(folder, config, config_path) : chosen(choice, key);
  if (!source) {
    throw Error(ErrorKind::kData,
                {"the tokenizer's folder has no chat template", folder,
                 fmt::format("name one with {}: {} or a file", key, fmt::join(chat_templates().names(), ", "))});
  }
  name_ = source->name;
  template_ = std::make_unique<JinjaTemplate>(source->text, source->name);
  tokens_ = token_texts(tokenizer, config, config_path);
}

JinjaTemplate::Rendered ChatTemplate::render(const nlohmann::ordered_json& messages,
                                             const nlohmann::ordered_json& tools, bool add_generation_prompt) const {
  nlohmann::ordered_json variables = tokens_;
  variables["messages"] = messages;
  variables["tools"] = tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = add_generation_prompt;
  return template_->render(variables);
}

void add_template(TokenKey& key, const std::string& folder, const std::string& choice) {
  for (const char* const name : {"chat_template.jinja", "tokenizer_config.json"}) {  // which may hold the template
    const std::string path = (fs::path(folder) / name).string();
    if (fs::is_regular_file(path)) key.files.push_back(path);
  }
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  std::array<char, 32> day{};
  std::strftime(day.data(), day.size(), "%F", localtime_r(&now, &parts));
  key.options["template"] = choice.empty() ? "" : chat_template_text(choice);
  key.options["day"] = day.data();  // which a template may write
}

}  // namespace tessera::data
