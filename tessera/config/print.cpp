#include "tessera/config/print.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::config {
namespace {

// What `instead`, `supported` and `when` add to a row's meaning.
std::string notes_of(const Key& key) {
  std::string notes;
  const auto add = [&](const std::string& note) { notes += (notes.empty() ? "" : "; ") + note; };
  if (!key.meaning.empty()) add(std::string(key.meaning));
  if (!key.notes.when.empty()) {
    std::string types(key.notes.when);
    for (size_t at = 0; (at = types.find('|', at)) != std::string::npos;) types.replace(at, 1, ", ");
    add("for " + types);
  }
  if (key.status == Status::kAlias || key.status == Status::kDeprecated) add("write " + std::string(key.notes.instead));
  if (key.status == Status::kRemoved || (key.status == Status::kNotYet && !key.notes.instead.empty())) {
    add(std::string(key.notes.instead));
  }
  if (!key.notes.supported.empty()) {
    std::string values;
    for (const Json& value : Json::parse(key.notes.supported)) values += (values.empty() ? "" : " or ") + value.dump();
    add("accepted only as " + values);
  }
  return notes;
}

std::string default_text(const Key& key) {
  if (key.status == Status::kRemoved || key.default_value == "null" || key.kind.type == Type::kObject) {
    return key.default_value == "required" ? "required" : "";
  }
  return std::string(key.default_value);
}

// Characters of Markdown's tables that may stand in a cell's text.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string markdown_table(std::span<const Key> table) {
  std::string text = "| key | value | default | status | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const Key& key : table) {
    const std::string value = default_text(key);
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", key.path, cell(describe(key.kind)),
                        value.empty() || value == "required" ? value : "`" + value + "`", describe_status(key),
                        cell(notes_of(key)));
  }
  return text;
}

}  // namespace

std::string print_resolved(const std::vector<ResolvedKey>& keys, Shown shown) {
  const auto hidden = [shown](const ResolvedKey& key) { return shown == Shown::kGiven && key.origin == "default"; };
  size_t key_width = 0, value_width = 0;
  for (const ResolvedKey& key : keys) {
    if (hidden(key)) continue;
    key_width = std::max(key_width, key.path.size());
    value_width = std::max(value_width, std::min<size_t>(key.value.dump().size(), 24));
  }
  std::string text;
  for (const ResolvedKey& key : keys) {
    if (hidden(key)) continue;
    text += fmt::format("{:<{}}  {:<{}}  {}\n", key.path, key_width, key.value.dump(), value_width, key.origin);
  }
  return text;
}

Json resolved_as_json(const std::vector<ResolvedKey>& keys) {
  Json list = Json::array();
  for (const ResolvedKey& key : keys) list.push_back({{"key", key.path}, {"value", key.value}, {"origin", key.origin}});
  return list;
}

std::string print_key_table(std::span<const Key> table) {
  size_t width = 0;
  for (const Key& key : table) width = std::max(width, key.path.size());
  std::string text;
  for (const Key& key : table) {
    const std::string value = default_text(key);
    text += fmt::format("{:<{}}  {:<10}  {}{}{}\n", key.path, width, describe_status(key), describe(key.kind),
                        value.empty()         ? ""
                        : value == "required" ? ", required"
                                              : ", default " + value,
                        notes_of(key).empty() ? "" : ": " + notes_of(key));
  }
  return text;
}

std::string config_page() {
  return "# Configuration keys\n\n"
         "Written by `tessera config keys --markdown`; do not edit. `tessera config check FILE` explains one file.\n\n"
         "Status: **honoured** acts as described; **always so** is accepted, because Tessera always does what it asks "
         "for; "
         "**no\n"
         "effect** is accepted, with a warning when it differs from its default; **not yet** is accepted at its "
         "default "
         "and\n"
         "refused otherwise; **alias** and **deprecated** are other names of a key; **removed** is refused. \"(Python: "
         "…)\" is\n"
         "the key's status in Python programs, where it differs from `tessera train` and C++. \"auto\" is explained in "
         "`tessera/config/auto_values.h`.\n\n"
         "## ds_config\n\n" +
         markdown_table(ds_config_keys()) + "\n## Run file\n\n" + markdown_table(run_file_keys());
}

}  // namespace tessera::config
