#include "tessera/config/key_table.h"

#include <fmt/format.h>
#include <strings.h>

#include <cmath>

namespace tessera::config {
namespace {

std::string bound(double value) { return fmt::format("{}", value); }

std::string range_of(const Kind& kind) {
  const bool low = std::isfinite(kind.low), high = std::isfinite(kind.high);
  if (low && high && !kind.above_low && !kind.below_high) {
    return fmt::format(" from {} to {}", bound(kind.low), bound(kind.high));
  }
  std::string text;
  if (low) text = (kind.above_low ? " above " : " of at least ") + bound(kind.low);
  if (high) text += (low ? " and" : "") + std::string(kind.below_high ? " below " : " up to ") + bound(kind.high);
  return text;
}

std::string join_or(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace

std::vector<std::string> split_choices(std::string_view choices) {
  std::vector<std::string> result;
  while (!choices.empty()) {
    const size_t end = std::min(choices.find('|'), choices.size());
    result.emplace_back(choices.substr(0, end));
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return result;
}

std::string describe(const Kind& kind) {
  switch (kind.type) {
    case Type::kBool:
      return "true or false";
    case Type::kInt:
      return "a whole number" + range_of(kind);
    case Type::kIntOrNever:
      return "a whole number" + range_of(kind) + ", or Infinity for never";
    case Type::kNumber:
      return "a number" + range_of(kind);
    case Type::kNumberOrList:
      return "a number, or a list with one per parameter group";
    case Type::kNumberList:
      return "a list of numbers" + range_of(kind);
    case Type::kIntList:
      return "a list of whole numbers" + range_of(kind);
    case Type::kPair:
      return "two numbers" + range_of(kind);
    case Type::kText:
      return "text";
    case Type::kTextList:
      return "a string or a list of strings";
    case Type::kChoice:
      return join_or(split_choices(kind.choices));
    case Type::kIntOrChoice:
      return "a whole number" + range_of(kind) + ", or " + join_or(split_choices(kind.choices));
    case Type::kObject:
    case Type::kOpenObject:
      return "an object";
    case Type::kAny:
      return "anything";
  }
  return "";
}

std::string describe(Status status) {
  switch (status) {
    case Status::kHonoured:
      return "honoured";
    case Status::kNoEffect:
      return "no effect";
    case Status::kAlwaysSo:
      return "always so";
    case Status::kNotYet:
      return "not yet";
    case Status::kAlias:
      return "alias";
    case Status::kDeprecated:
      return "deprecated";
    case Status::kRemoved:
      return "removed";
  }
  return "";
}

Status status_of(const Key& key, Door door) {
  return door == Door::kPython ? key.notes.in_python.value_or(key.status) : key.status;
}

std::string describe_status(const Key& key) {
  const std::string text = describe(key.status);
  return key.notes.in_python ? fmt::format("{} (Python: {})", text, describe(*key.notes.in_python)) : text;
}

Json default_of(const Key& key) { return key.default_value == "required" ? Json() : Json::parse(key.default_value); }

bool applies(const Key& key, std::string_view type) {
  if (key.notes.when.empty()) return true;
  for (const std::string& name : split_choices(key.notes.when)) {
    if (name == type) return true;
  }
  return false;
}

}  // namespace tessera::config
