// Rows of instruction data as conversations, whichever of the usual forms they have:
//
//   {"messages": [{"role": "user", "content": "…"}, …], "tools": […]}             OpenAI's, TRL's
//   {"conversations": [{"from": "human", "value": "…"}, …], "system": "…"}         ShareGPT's
//   {"conversation": [{"system": "…", "input": "…", "output": "…"}, …]}            XTuner's
//   {"instruction": "…", "input": "…", "output": "…", "history": [["…", "…"], …]}  Alpaca's
//   {"text": "### Human: …### Assistant: …"}                                       OpenAssistant's, as guanaco has it
//   {"prompt": …, "completion": …}                                                 two texts, or two lists of messages
//
// A row may hold more; of "prompt" and "completion" as texts there is nothing to be put into a template.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::data {

struct Conversation {
  nlohmann::ordered_json messages;  // a list of {"role": …, "content": …, …}; null where the two texts are all
  nlohmann::ordered_json tools;     // a list, or null
  std::string prompt, completion;   // of a row of two texts
  std::string where;                // file and line

  bool is_plain() const { return messages.is_null(); }
};

// ErrorKind::kData where the row has none of the forms, or is damaged; `where` of it.
Conversation conversation_of(const nlohmann::ordered_json& row, const std::string& where);

// All of a file: of .jsonl one a line, of .json the same or one list. ErrorKind::kData as above, for another format,
// and where there is none.
std::vector<Conversation> read_conversations(const std::string& path);

}  // namespace tessera::data
