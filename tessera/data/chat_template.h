// How a model writes a conversation: its template (jinja_template.h), from the tokenizer's folder, a file, or one that
// is built in.
//
//   const ChatTemplate chat(*tokenizer, "models/llama", "");
//   chat.render(messages, tools, /*add_generation_prompt=*/true).text;   // "<|begin_of_text|><|start_header_id|>user…"
//
// Immutable; safe to use from any thread.
#pragma once

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/data/jinja_template.h"
#include "tessera/data/token_cache.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

// Templates that can be asked for by name: what the model families were trained with.
using WriteTemplate = std::string (*)();
Registry<WriteTemplate> chat_templates();

// The template of that choice, as ChatTemplate has it; never the folder's own. Errors: ChatTemplate's.
std::string chat_template_text(const std::string& choice);

// What a run file calls the choice.
inline constexpr const char* kChatTemplateKey = "data.chat_template";

// Adds all that decides what ChatTemplate(tokenizer, folder, choice) writes, beside the tokenizer's own files.
void add_template(TokenKey& key, const std::string& folder, const std::string& choice);

class ChatTemplate {
 public:
  // choice: one of chat_templates(), a path, or empty for the folder's own: chat_template.jinja, else "chat_template"
  // of tokenizer_config.json (of several the one named "default"). The tokenizer is used only during the call. `key`:
  // with what the user chooses, for messages. ErrorKind::kData where the folder has none, there is no such file, or it
  // cannot be read.
  ChatTemplate(const Tokenizer& tokenizer, const std::string& folder, const std::string& choice,
               const std::string& key = kChatTemplateKey);

  // messages: a list of {"role", "content", …}; tools: a list of JSON schemas, or null. add_generation_prompt: also
  // what comes before an answer. ErrorKind::kData where the template refuses them.
  JinjaTemplate::Rendered render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                                 bool add_generation_prompt) const;

  bool marks_generated() const { return template_->marks_generated(); }
  const std::string& name() const { return name_; }  // for one line of description

 private:
  std::string name_;
  std::unique_ptr<const JinjaTemplate> template_;
  nlohmann::ordered_json tokens_;  // {"bos_token": "<s>", …}
};

// The template of a dataset's rows, made when the first of them needs one: a folder without any serves texts that are
// written out.
class TemplateOfRows {
 public:
  // ChatTemplate's; borrows the tokenizer.
  TemplateOfRows(const Tokenizer& tokenizer, std::string folder, std::string choice)
      : tokenizer_(tokenizer), folder_(std::move(folder)), choice_(std::move(choice)) {}

  // nullptr where all rows so far were plain text.
  template <class Row>
  const ChatTemplate* for_rows(const std::vector<Row>& rows) {
    const bool all_plain = std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.is_plain(); });
    if (!all_plain && !made_) made_.emplace(tokenizer_, folder_, choice_);
    return made_ ? &*made_ : nullptr;
  }
  std::string name() const { return made_ ? made_->name() : ""; }

 private:
  const Tokenizer& tokenizer_;
  std::string folder_, choice_;
  std::optional<ChatTemplate> made_;
};

}  // namespace tessera::data
