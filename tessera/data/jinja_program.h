// A template as functions: each expression and statement is one, made by the parser, called with the state of a
// rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/data/jinja_value.h"

namespace tessera::data::jinja {

using Scope = std::map<std::string, Value, std::less<>>;

// Of one rendering.
struct State {
  static constexpr int64_t kMostSteps = 10'000'000;
  static constexpr int kMostCalls = 25;  // of macros, one inside the other

  std::vector<Scope> scopes;  // from the template's own inwards
  std::string* out = nullptr;
  std::vector<std::pair<size_t, size_t>> generated;
  size_t most_text = 0;  // bytes
  int64_t steps = 0;
  int calls = 0;
  int line = 1;  // of the statement that runs

  Value look_up(const std::string& name) const;
  void step();  // fails when there were too many
  void write(std::string_view text);
};

using Expression = std::function<Value(State&)>;

enum class Flow { kNext, kBreak, kContinue };
using Statement = std::function<Flow(State&)>;

struct Parsed {
  Statement body;
  bool marks_generated = false;
};

// Throws Mistake (jinja_lexer.h).
Parsed parse(std::string_view source);

}  // namespace tessera::data::jinja
