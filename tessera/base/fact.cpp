#include "tessera/base/fact.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/format.h"

namespace tessera {

Fact fact_of_bytes(const std::string& topic, const std::string& name, uint64_t bytes) {
  return {.topic = topic, .name = name, .value = format_bytes(bytes), .number = bytes};
}

Fact fact_of_count(const std::string& topic, const std::string& name, uint64_t count) {
  return {.topic = topic, .name = name, .value = format_count(static_cast<int64_t>(count)), .number = count};
}

std::vector<Fact> joined(std::initializer_list<std::vector<Fact>> parts) {
  std::vector<Fact> all;
  for (const std::vector<Fact>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::string facts_text(const std::vector<Fact>& facts) {
  size_t width = 0;
  for (const Fact& fact : facts) width = std::max(width, fact.name.size());
  std::string text, topic;
  for (const Fact& fact : facts) {
    if (fact.topic != topic) text += (topic.empty() ? "" : "\n") + fact.topic + "\n";
    topic = fact.topic;
    text += fmt::format("  {:<{}}  {}\n", fact.name, width, fact.value);
  }
  const std::vector<std::string> warnings = warnings_of(facts);
  text += warnings.empty() ? "\nno warnings\n" : "\nwarnings\n";
  for (const std::string& warning : warnings) text += fmt::format("  {}\n", warning);
  return text;
}

nlohmann::ordered_json facts_json(const std::vector<Fact>& facts) {
  auto list = nlohmann::ordered_json::array();
  for (const Fact& fact : facts) {
    nlohmann::ordered_json& row = list.emplace_back();
    row = {
        {"topic", fact.topic}, {"name", fact.name}, {"value", fact.value}, {"number", nullptr}, {"warning", nullptr}};
    if (fact.number) row["number"] = *fact.number;
    if (fact.warning) row["warning"] = *fact.warning;
  }
  return list;
}

std::vector<std::string> warnings_of(const std::vector<Fact>& facts) {
  std::vector<std::string> warnings;
  for (const Fact& fact : facts) {
    if (fact.warning) warnings.push_back(fmt::format("{}, {}: {}", fact.topic, fact.name, *fact.warning));
  }
  return warnings;
}

}  // namespace tessera
