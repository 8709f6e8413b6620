#include "tessera/config/where.h"

#include <fmt/format.h>

namespace tessera::config {
namespace {

bool is_under(const std::string& key, const std::string& prefix) {
  return key.compare(0, prefix.size(), prefix) == 0 && (key.size() == prefix.size() || key[prefix.size()] == '/');
}

}  // namespace

std::string Place::text() const { return line > 0 ? fmt::format("{}:{}:{}", file, line, column) : file; }

Place Document::place(const Pointer& key) const {
  for (Pointer at = key;; at = at.parent_pointer()) {
    const auto found = places.find(at.to_string());
    if (found != places.end()) return found->second;
    if (at.empty()) return {name, 0, 0};
  }
}

Document Document::part(const Pointer& key) const {
  Document result{place(key).file, value.at(key), {}};
  const std::string prefix = key.to_string();
  for (const auto& [pointer, place] : places) {
    if (is_under(pointer, prefix)) result.places[pointer.substr(prefix.size())] = place;
  }
  return result;
}

void Document::move(const Pointer& from, const Pointer& to) {
  const Document moved = part(from);
  erase(from);
  value[to] = moved.value;
  for (const auto& [pointer, place] : moved.places) places[to.to_string() + pointer] = place;
}

void Document::set(const Pointer& key, Json new_value, const Place& place) {
  if (value.contains(key)) erase(key);
  std::vector<std::string> names;
  for (Pointer rest = key; !rest.empty(); rest.pop_back()) names.push_back(rest.back());
  Json* at = &value;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    if (at->is_null()) *at = Json::object();  // value[key] would make lists where names are numbers
    at = &(*at)[*name];
  }
  *at = std::move(new_value);
  for (Pointer at = key; !at.empty(); at = at.parent_pointer()) places.emplace(at.to_string(), place);
}

void Document::erase(const Pointer& key) {
  value.at(key.parent_pointer()).erase(key.back());
  const std::string prefix = key.to_string();
  std::erase_if(places, [&](const auto& entry) { return is_under(entry.first, prefix); });
}

std::string dotted(const Pointer& key) {
  std::string text;
  Pointer rest = key;
  while (!rest.empty()) {
    text = text.empty() ? rest.back() : rest.back() + "." + text;
    rest = rest.parent_pointer();
  }
  return text;
}

}  // namespace tessera::config
