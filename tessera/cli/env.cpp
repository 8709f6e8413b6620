// tessera env: what this machine has that a run would use, and what will go wrong.
#include <fmt/format.h>
#include <unicode/uversion.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/fact.h"
#include "tessera/cli/commands.h"
#include "tessera/engine/environment_facts.h"

namespace tessera::cli {
namespace {

// Of the library that cuts texts into words, which Python's module does without.
Fact icu_fact(const std::string& topic) {
  UVersionInfo version;
  u_getVersion(version);
  std::array<char, U_MAX_VERSION_STRING_LENGTH> text{};
  u_versionToString(version, text.data());
  return {.topic = topic, .name = "ICU", .value = text.data()};
}

std::vector<Fact> facts_of_program() {
  std::vector<Fact> facts = engine::environment_facts();
  const std::string topic = facts.front().topic;
  const auto end = std::find_if(facts.begin(), facts.end(), [&topic](const Fact& fact) { return fact.topic != topic; });
  facts.insert(end, icu_fact(topic));
  return facts;
}

}  // namespace

void add_env_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("env", "Show what this machine has, and what will go wrong in a run");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json] {
    const std::vector<Fact> facts = facts_of_program();
    fmt::print("{}", *json ? facts_json(facts).dump(2) + "\n" : facts_text(facts));
  });
}

}  // namespace tessera::cli
