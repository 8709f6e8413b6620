// Rows of preference data, in the forms that TRL's DPOTrainer takes: a prompt and two answers to it, of which one was
// preferred.
//
//   {"prompt": "…", "chosen": "…", "rejected": "…"}                texts
//   {"prompt": [{"role": …, "content": …}, …], "chosen": [{…}], "rejected": [{…}]}   lists of messages
//   {"chosen": …, "rejected": …}                                    of either kind: what both begin with is the prompt
//
// What both begin with is, as TRL has it, of lists the messages that are the same, of texts the characters, less a
// space at the end; where one is the beginning of the other, all but its last. A prompt that is a text beside lists of
// messages, as some data sets have it, is left out: the lists begin with it. A row may also have "tools", a list of
// JSON schemas or one as a text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::data {

struct Preference {
  nlohmann::ordered_json prompt, chosen, rejected;  // three texts, or three lists of messages
  nlohmann::ordered_json tools;                     // a list, or null
  std::string where;                                // file and line

  bool is_plain() const { return prompt.is_string(); }
};

// ErrorKind::kData where the row has none of the forms, or chosen and rejected begin with nothing in common; `where` of
// it.
Preference preference_of(const nlohmann::ordered_json& row, const std::string& where);

// All of a file: of .jsonl and .json rows of JSON (json_rows.h), of .csv and .parquet columns of texts by these names.
// ErrorKind::kData as above, for another format, where a column or a file is missing, and where there is no row.
std::vector<Preference> read_preferences(const std::string& path);

}  // namespace tessera::data
