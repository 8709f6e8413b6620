#include "tessera/data/preferences.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/data/json_rows.h"
#include "tessera/data/reader.h"
#include "tessera/data/readers.h"

namespace tessera::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPreferenceForms =
    "a row is {\"prompt\": …, \"chosen\": …, \"rejected\": …}, three texts or three lists of messages; without "
    "\"prompt\" chosen and rejected both begin with it";

[[noreturn]] void refuse_preference(const std::string& what, const std::string& where) {
  throw Error(ErrorKind::kData, {what, where, kPreferenceForms});
}

void require_messages(const Json& list, const char* key, const std::string& where) {
  const auto is_message = [](const Json& each) {
    return each.is_object() && each.contains("role") && each.at("role").is_string();
  };
  if (list.is_array() && !list.empty() && std::all_of(list.begin(), list.end(), is_message)) return;
  refuse_preference(fmt::format("'{}' is neither a text nor a list of messages with roles", key), where);
}

// Whatever the order of their keys.
bool same_message(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

size_t shared_messages(const Json& chosen, const Json& rejected) {
  const size_t most = std::min(chosen.size(), rejected.size());
  for (size_t i = 0; i < most; ++i) {
    if (!same_message(chosen[i], rejected[i])) return i;
  }
  return most - 1;
}

bool is_inside_character(const std::string& text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

// In bytes, up to the beginning of a character.
size_t shared_text(const std::string& chosen, const std::string& rejected) {
  const size_t most = std::min(chosen.size(), rejected.size());
  const auto end = static_cast<std::ptrdiff_t>(most);
  auto at =
      static_cast<size_t>(std::mismatch(chosen.begin(), chosen.begin() + end, rejected.begin()).first - chosen.begin());
  const bool is_prefix = at == most;
  if (is_prefix && at > 0) --at;
  while (at > 0 && is_inside_character(chosen, at)) --at;
  return !is_prefix && at > 0 && chosen[at - 1] == ' ' ? at - 1 : at;
}

Json part_of(const Json& list, size_t from, size_t to) {
  Json part = Json::array();
  for (size_t i = from; i < to; ++i) part.push_back(list[i]);
  return part;
}

void take_prompt_out(Preference& row) {
  const bool plain = row.chosen.is_string();
  const size_t shared =
      plain ? shared_text(row.chosen.get_ref<const std::string&>(), row.rejected.get_ref<const std::string&>())
            : shared_messages(row.chosen, row.rejected);
  if (shared == 0) {
    refuse_preference("there is no 'prompt', and 'chosen' and 'rejected' begin with nothing in common", row.where);
  }
  const auto rest = [&](const Json& whole) {
    return plain ? Json(whole.get_ref<const std::string&>().substr(shared)) : part_of(whole, shared, whole.size());
  };
  row.prompt =
      plain ? Json(row.chosen.get_ref<const std::string&>().substr(0, shared)) : part_of(row.chosen, 0, shared);
  row.chosen = rest(row.chosen);
  row.rejected = rest(row.rejected);
}

Json tools_of(const Json& row, const std::string& where) {
  const auto tools = row.find("tools");
  if (tools == row.end()) return nullptr;
  if (tools->is_string()) return parse_ordered_json(tools->get<std::string>(), {.where = where + ", 'tools'"});
  return *tools;
}

const Json* value_under(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found == row.end() || found->is_null() ? nullptr : &*found;
}

std::string keys_of(const Json& row) {
  std::string keys;
  for (const auto& [key, value] : row.items()) keys += (keys.empty() ? "'" : ", '") + key + "'";
  return keys.empty() ? "none" : keys;
}

std::vector<Preference> preferences_of(const std::string& path, std::span<const Column> columns) {
  std::vector<Preference> all;
  for_each_row(path, columns, [&](std::span<std::string> values) {
    Json row;
    for (size_t i = 0; i < columns.size(); ++i) row[columns[i].name] = values[i];
    all.push_back(preference_of(row, fmt::format("{}, row {}", path, all.size() + 1)));
  });
  return all;
}

std::vector<Preference> preferences_of_columns(const std::string& path) {
  const Column columns[] = {{"chosen"}, {"rejected"}, {"prompt"}};
  try {
    return preferences_of(path, columns);
  } catch (const MissingColumn&) {
    return preferences_of(path, std::span(columns).first(2));  // which misses what else is missing
  }
}

}  // namespace

Preference preference_of(const Json& row, const std::string& where) {
  if (!row.is_object()) refuse_preference("it is not an object", where);
  const Json *const chosen = value_under(row, "chosen"), *const rejected = value_under(row, "rejected");
  if (chosen == nullptr || rejected == nullptr) {
    refuse_preference(
        fmt::format("there is no '{}': its keys are {:.300}", chosen == nullptr ? "chosen" : "rejected", keys_of(row)),
        where);
  }
  Preference preference{
      .prompt = nullptr, .chosen = *chosen, .rejected = *rejected, .tools = tools_of(row, where), .where = where};
  if (chosen->is_string() != rejected->is_string()) {
    refuse_preference("one of 'chosen' and 'rejected' is a text, the other is not", where);
  }
  const bool plain = chosen->is_string();
  if (!plain) {
    require_messages(*chosen, "chosen", where);
    require_messages(*rejected, "rejected", where);
  }
  const Json* const prompt = value_under(row, "prompt");
  if (prompt == nullptr || (prompt->is_string() && !plain)) {
    take_prompt_out(preference);
    return preference;
  }
  if (plain && !prompt->is_string()) {
    refuse_preference("'chosen' and 'rejected' are texts, but 'prompt' is not", where);
  }
  if (!plain) require_messages(*prompt, "prompt", where);
  preference.prompt = *prompt;
  return preference;
}

std::vector<Preference> read_preferences(const std::string& path) {
  check_file(path);
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".csv" || extension == ".parquet") return preferences_of_columns(path);
  if (extension != ".jsonl" && extension != ".json") {
    throw Error(ErrorKind::kData, {fmt::format("preferences are not read from '{}' files", extension), path,
                                   "use .jsonl, .json, .csv or .parquet"});
  }
  std::vector<Preference> all;
  for_each_json_row(path, [&](const Json& row, const std::string& where) { all.push_back(preference_of(row, where)); });
  return all;
}

}  // namespace tessera::data
