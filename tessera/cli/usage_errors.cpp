#include "tessera/cli/usage_errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "tessera/base/suggest.h"

namespace tessera::cli {
namespace {

// The subcommand that was being read, and how a user writes it: "tessera checkpoint export".
struct Place {
  const CLI::App* command;
  std::string name;
};

Place place_of(const CLI::App& app) {
  Place place{&app, app.get_name()};
  while (!place.command->get_subcommands().empty()) {
    place.command = place.command->get_subcommands().back();
    place.name += " " + place.command->get_name();
  }
  return place;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> subcommand_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* each : command.get_subcommands(nullptr)) names.push_back(each->get_name());
  return names;
}

std::string help_of(const Place& place) { return fmt::format("see '{} --help'", place.name); }

Error unknown_words(const Place& place) {
  const std::vector<std::string> words = place.command->remaining(true);
  for (const std::string& word : words) {
    if (!word.starts_with("-")) continue;
    const std::string option = word.substr(0, word.find('='));
    const auto nearest = nearest_name(option, option_names(*place.command));
    return Error(ErrorKind::kUsage, {fmt::format("'{}' has no option '{}'", place.name, option), "the command line",
                                     (nearest ? fmt::format("did you mean '{}'? ", *nearest) : "") + help_of(place)});
  }
  const std::string word = words.empty() ? "" : words.front();
  const std::vector<std::string> commands = subcommand_names(*place.command);
  const auto nearest = nearest_name(word, commands);
  std::string fix = nearest ? fmt::format("did you mean '{}'? ", *nearest) : "";
  fix += commands.empty() ? help_of(place) : fmt::format("commands: {}", fmt::join(commands, ", "));
  return Error(ErrorKind::kUsage, {fmt::format("'{}' does not take '{}'", place.name, word), "the command line", fix});
}

// CLI11 says "Could not convert: --nproc = two".
Error unreadable_value(const Place& place, std::string text) {
  text.erase(0, text.find(": ") + 2);
  const size_t equals = text.find(" = ");
  const std::string option = text.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 3);
  const CLI::Option* const known = place.command->get_option_no_throw(option);
  const std::string type = known == nullptr ? "" : known->get_type_name();
  const std::string wanted = type.starts_with("INT") || type.starts_with("UINT") ? "a whole number"
                             : type.starts_with("FLOAT")                         ? "a number"
                                                                                 : "another value";
  return Error(ErrorKind::kUsage,
               {fmt::format("{} is '{}'", option, value), "the command line",
                fmt::format("use {}, e.g. {} {}", wanted, option, wanted == "another value" ? "…" : "2")});
}

// CLI11 says "--port: Value 0 not in range 1 to 65535", and writes out the largest double where there is no upper end.
std::string range_in_words(const std::string& text) {
  constexpr std::string_view kRange = " not in range ";
  const size_t range = text.find(kRange);
  const size_t value = text.find(": Value ");
  const size_t to = text.find(" to ", range);
  if (range == std::string::npos || value == std::string::npos || to == std::string::npos) return text;
  const std::string least = text.substr(range + kRange.size(), to - range - kRange.size());
  const std::string most = text.substr(to + 4);
  const std::string given = text.substr(value + 8, range - value - 8);
  constexpr size_t kLongestEnd = 20;
  const std::string wanted = most.size() < kLongestEnd ? fmt::format("from {} to {}", least, most)
                                                       : fmt::format("{} or more", least.substr(0, least.find('.')));
  return fmt::format("{} is {}, and may be {}", text.substr(0, value), given, wanted);
}

}  // namespace

Error usage_error(const CLI::App& app, const CLI::ParseError& refusal) {
  const Place place = place_of(app);
  const auto kind = static_cast<CLI::ExitCodes>(refusal.get_exit_code());
  const std::string text = refusal.what();
  if (kind == CLI::ExitCodes::ExtrasError) return unknown_words(place);
  if (kind == CLI::ExitCodes::ConversionError) return unreadable_value(place, text);
  if (kind == CLI::ExitCodes::RequiredError && !place.command->remaining(true).empty()) return unknown_words(place);
  if (kind == CLI::ExitCodes::RequiredError && !subcommand_names(*place.command).empty()) {
    return Error(ErrorKind::kUsage, {fmt::format("'{}' needs a command", place.name), "the command line",
                                     fmt::format("one of: {}", fmt::join(subcommand_names(*place.command), ", "))});
  }
  if (kind == CLI::ExitCodes::RequiredError) {
    return Error(ErrorKind::kUsage, {fmt::format("'{}': {}", place.name, text), "the command line", help_of(place)});
  }
  return Error(ErrorKind::kUsage,
               {range_in_words(text), fmt::format("the command line of '{}'", place.name), help_of(place)});
}

}  // namespace tessera::cli
