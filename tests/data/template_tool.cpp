// Renders Jinja templates, for the checks against jinja2: each line of standard input is {"template": …, "variables":
// {…}}; each line of output is the text with the generated spans, or the error.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/base/error.h"
#include "tessera/data/jinja_template.h"

int main() {
  using nlohmann::ordered_json;
  for (std::string line; std::getline(std::cin, line);) {
    const auto asked = ordered_json::parse(line);
    ordered_json answer;
    try {
      const tessera::data::JinjaTemplate jinja(asked.at("template").get<std::string>(), "the test");
      const auto rendered = jinja.render(asked.at("variables"));
      answer = {{"text", rendered.text}, {"generated", rendered.generated}};
    } catch (const tessera::Error& error) {
      answer = {{"error", error.report().what + " @ " + error.report().where}};
    }
    fmt::print("{}\n", answer.dump());
  }
}
