#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "tessera/data/jinja_expressions.h"
#include "tessera/data/jinja_lexer.h"
#include "tessera/data/jinja_program.h"

namespace tessera::data::jinja {
namespace {

// The names that "for a, b in" and "set a, b =" assign to, or one "space.name".
struct Target {
  std::vector<std::string> names;
  std::string space;  // of a namespace

  void assign(State& state, const Value& value) const {
    Scope& scope = state.scopes.back();
    if (!space.empty()) {
      const Value found = state.look_up(space);
      if (found.names() == nullptr) fail(fmt::format("'{}' is no namespace", space));
      if (value.names() != nullptr) fail("a namespace cannot be put into a namespace");
      found.names()->values[names[0]] = value;
    } else if (names.size() == 1) {
      scope[names[0]] = value;
    } else {
      const List items = items_of(value);
      if (items.size() != names.size()) fail(fmt::format("{} names are given {} values", names.size(), items.size()));
      for (size_t i = 0; i < names.size(); ++i) scope[names[i]] = items[i];
    }
  }
};

// Runs statements with their output in a text of its own.
std::string captured(State& state, const Statement& body) {
  std::string text;
  std::string* const before = std::exchange(state.out, &text);
  try {
    body(state);
  } catch (...) {
    state.out = before;
    throw;
  }
  state.out = before;
  return text;
}

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : pieces_(pieces_of(source)) {}

  Parsed parse() {
    Statement body = block({});
    return {.body = std::move(body), .marks_generated = marks_generated_};
  }

 private:
  // Up to one of the blocks named, which is then the current piece; without names up to the template's end.
  Statement block(std::initializer_list<std::string_view> ends) {
    const Deeper deeper(*this);
    std::vector<Statement> statements;
    for (; at_ < pieces_.size(); ++at_) {
      const Piece& piece = pieces_[at_];
      if (piece.kind != Piece::Kind::kText) start(piece.tokens);
      if (piece.kind == Piece::Kind::kText) {
        statements.emplace_back([text = piece.text](State& state) {
          state.write(text);
          return Flow::kNext;
        });
      } else if (piece.kind == Piece::Kind::kOutput) {
        statements.push_back(at_line(piece.line, output()));
      } else {
        const std::string name = expect_name();
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) return in_order(std::move(statements));
        statements.push_back(at_line(piece.line, statement(name)));
      }
    }
    if (ends.size() > 0) throw Mistake{fmt::format("'{}' is missing", *(ends.end() - 1)), line()};
    return in_order(std::move(statements));
  }

  static Statement in_order(std::vector<Statement> statements) {
    return [statements = std::move(statements)](State& state) {
      for (const Statement& statement : statements) {
        const Flow flow = statement(state);
        if (flow != Flow::kNext) return flow;
      }
      return Flow::kNext;
    };
  }

  Statement output() {
    Expression value = tuple_or_expression();
    expect_end();
    return Statement([value = std::move(value)](State& state) {
      state.write(written(value(state)));
      return Flow::kNext;
    });
  }

  Statement statement(const std::string& name) {
    if (name == "if") return if_statement();
    if (name == "for") return for_statement();
    if (name == "set") return set_statement();
    if (name == "macro") return macro_statement();
    if (name == "filter") return filter_statement();
    if (name == "generation") return generation_statement();
    if (name == "break" || name == "continue") {
      expect_end();
      if (loops_ == 0) throw Mistake{fmt::format("'{}' stands outside of a loop", name), line()};
      return [flow = name == "break" ? Flow::kBreak : Flow::kContinue](State&) { return flow; };
    }
    throw Mistake{fmt::format("the block '{:.100}' is not supported, or stands in the wrong place", name), line()};
  }

  // The current piece begins with one of the names that block() was given: which it is.
  const std::string& ending() const { return pieces_[at_].tokens[0].text; }

  Statement if_statement() {
    Expression condition = expression();
    expect_end();
    ++at_;
    Statement then = block({"elif", "else", "endif"});
    Statement otherwise;
    if (ending() == "elif") {
      const Deeper deeper(*this);
      otherwise = if_statement();
    } else if (ending() == "else") {
      expect_end();
      ++at_;
      otherwise = block({"endif"});
    }
    if (ending() == "endif") expect_end_of("endif");
    return Statement(
        [condition = std::move(condition), then = std::move(then), otherwise = std::move(otherwise)](State& state) {
          if (is_true(condition(state))) return then(state);
          return otherwise ? otherwise(state) : Flow::kNext;
        });
  }

  Statement for_statement() {
    Target target = names_before("in");
    Expression items = tuple_or_expression(/*with_condition=*/false);
    Expression condition;
    if (take_name("if")) condition = expression();
    expect_end();
    ++at_;
    ++loops_;
    Statement body = block({"else", "endfor"});
    --loops_;
    Statement otherwise;
    if (ending() == "else") {
      expect_end();
      ++at_;
      otherwise = block({"endfor"});
    }
    expect_end_of("endfor");
    return Statement([target = std::move(target), items = std::move(items), condition = std::move(condition),
                      body = std::move(body), otherwise = std::move(otherwise)](State& state) {
      return loop(state, target, chosen(state, target, items_of(items(state)), condition), body, otherwise);
    });
  }

  static List chosen(State& state, const Target& target, List items, const Expression& condition) {
    if (!condition) return items;
    List result;
    for (Value& item : items) {
      const Inner inner(state);
      target.assign(state, item);
      state.step();
      if (is_true(condition(state))) result.push_back(std::move(item));
    }
    return result;
  }

  static Flow loop(State& state, const Target& target, const List& items, const Statement& body,
                   const Statement& otherwise) {
    if (items.empty()) return otherwise ? otherwise(state) : Flow::kNext;
    auto last = std::make_shared<std::optional<Value>>();  // what loop.changed() was given before
    const auto changed = Function{"changed", [last](const Arguments& arguments) -> Value {
                                    const Value now{List(arguments.values)};
                                    const bool is_other = !*last || !are_equal(**last, now);
                                    *last = now;
                                    return is_other;
                                  }};
    for (size_t i = 0; i < items.size(); ++i) {
      const Inner inner(state);
      target.assign(state, items[i]);
      state.scopes.back()["loop"] = loop_value(items, i, changed);
      state.step();
      if (body(state) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  static Value loop_value(const List& items, size_t i, const Function& changed) {
    const auto index = static_cast<int64_t>(i), size = static_cast<int64_t>(items.size());
    auto cycle = [i](const Arguments& arguments) -> Value {
      if (arguments.values.empty()) fail("loop.cycle needs values");
      return arguments.values[i % arguments.values.size()];
    };
    return Entries{{"index", index + 1},
                   {"index0", index},
                   {"revindex", size - index},
                   {"revindex0", size - index - 1},
                   {"first", i == 0},
                   {"last", i + 1 == items.size()},
                   {"length", size},
                   {"previtem", i > 0 ? items[i - 1] : Value(Undefined{"there is no previous item"})},
                   {"nextitem", i + 1 < items.size() ? items[i + 1] : Value(Undefined{"there is no next item"})},
                   {"cycle", Function{"cycle", cycle}},
                   {"changed", changed}};
  }

  Statement set_statement() {
    Target target = names_before("");
    if (take_sign("=")) {
      Expression value = tuple_or_expression();
      expect_end();
      return Statement([target = std::move(target), value = std::move(value)](State& state) {
        target.assign(state, value(state));
        return Flow::kNext;
      });
    }
    auto filters = filters_until_end();
    ++at_;
    Statement body = block({"endset"});
    expect_end_of("endset");
    return Statement([target = std::move(target), filters = std::move(filters), body = std::move(body)](State& state) {
      target.assign(state, filtered(state, captured_inside(state, body), filters));
      return Flow::kNext;
    });
  }

  Statement filter_statement() {
    auto filters = std::vector<FilterCall>{filter_call()};
    for (FilterCall& more : filters_until_end()) filters.push_back(std::move(more));
    ++at_;
    Statement body = block({"endfilter"});
    expect_end_of("endfilter");
    return Statement([filters = std::move(filters), body = std::move(body)](State& state) {
      state.write(written(filtered(state, captured_inside(state, body), filters)));
      return Flow::kNext;
    });
  }

  Statement generation_statement() {
    marks_generated_ = true;
    expect_end();
    ++at_;
    Statement body = block({"endgeneration"});
    expect_end_of("endgeneration");
    return Statement([body = std::move(body)](State& state) {
      const Inner inner(state);
      const size_t begin = state.out->size();
      body(state);
      state.generated.emplace_back(begin, state.out->size());
      return Flow::kNext;
    });
  }

  struct Parameter {
    std::string name;
    Expression otherwise;  // empty: none
  };

  std::vector<Parameter> parameters() {
    std::vector<Parameter> all;
    expect_sign("(");
    while (!take_sign(")")) {
      if (!all.empty()) expect_sign(",");
      Parameter parameter{.name = expect_name(), .otherwise = {}};
      if (take_sign("=")) parameter.otherwise = expression();
      all.push_back(std::move(parameter));
    }
    return all;
  }

  Statement macro_statement() {
    const std::string name = expect_name();
    auto all = std::make_shared<const std::vector<Parameter>>(parameters());
    expect_end();
    ++at_;
    const int outer_loops = std::exchange(loops_, 0);
    auto body = std::make_shared<const Statement>(block({"endmacro"}));
    loops_ = outer_loops;
    expect_end_of("endmacro");
    return Statement([name, all, body](State& state) {
      state.scopes.back()[name] = Function{name, [&state, name, all, body](const Arguments& arguments) {
                                             return Value(call_macro(state, name, *all, *body, arguments));
                                           }};
      return Flow::kNext;
    });
  }

  // A macro sees the template's own names, not those of its caller.
  static std::string call_macro(State& state, const std::string& name, const std::vector<Parameter>& parameters,
                                const Statement& body, const Arguments& arguments) {
    if (arguments.values.size() > parameters.size()) {
      fail(fmt::format("the macro '{}' takes at most {} arguments, and has {}", name, parameters.size(),
                       arguments.values.size()));
    }
    for (const auto& [given, value] : arguments.named) {
      const bool known =
          std::any_of(parameters.begin(), parameters.end(), [&](const auto& each) { return each.name == given; });
      if (!known) fail(fmt::format("the macro '{}' has no argument '{:.100}'", name, given));
    }
    const Call inside(state);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      Value value = Undefined{fmt::format("the argument '{}' of '{}' is not given", parameter.name, name)};
      if (i < arguments.values.size()) {
        value = arguments.values[i];
      } else if (const Value* const named = find(arguments.named, parameter.name)) {
        value = *named;
      } else if (parameter.otherwise) {
        value = parameter.otherwise(state);
      }
      state.scopes.back()[parameter.name] = std::move(value);
    }
    return captured(state, body);
  }

  static std::string captured_inside(State& state, const Statement& body) {
    const Inner inner(state);
    return captured(state, body);
  }

  // A scope that ends with this.
  class Inner {
   public:
    explicit Inner(State& state) : state_(state) { state.scopes.emplace_back(); }
    ~Inner() { state_.scopes.pop_back(); }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    State& state_;
  };

  // The scopes of a macro that runs, instead of its caller's.
  class Call {
   public:
    explicit Call(State& state) : state_(state) {
      if (++state.calls > State::kMostCalls) {
        --state.calls;
        fail("macros call each other too deep");
      }
      caller_.assign(std::make_move_iterator(state.scopes.begin() + 2), std::make_move_iterator(state.scopes.end()));
      state.scopes.resize(2);
      state.scopes.emplace_back();
    }
    ~Call() {
      state_.scopes.resize(2);
      for (Scope& scope : caller_) state_.scopes.push_back(std::move(scope));
      --state_.calls;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    State& state_;
    std::vector<Scope> caller_;
  };

  // What is wrong while it runs is wrong in its line.
  static Statement at_line(int line, Statement statement) {
    return [line, statement = std::move(statement)](State& state) {
      state.line = line;
      state.step();
      return statement(state);
    };
  }

  // The current piece is this block, and nothing more.
  void expect_end_of(std::string_view name) {
    if (ending() != name) throw Mistake{fmt::format("'{}' is missing", name), line()};
    expect_end();
  }

  Target names_before(const char* end) {
    const bool in_brackets = take_sign("(");
    Target target{.names = {expect_name()}, .space = ""};
    if (take_sign(".")) {
      target.space = target.names[0];
      target.names[0] = expect_name();
    }
    while (take_sign(",")) target.names.push_back(expect_name());
    if (in_brackets) expect_sign(")");
    if (*end != '\0' && !take_name(end)) throw Mistake{fmt::format("'{}' is missing", end), line()};
    return target;
  }

  std::vector<Piece> pieces_;
  size_t at_ = 0;  // the piece
  int loops_ = 0;
  bool marks_generated_ = false;
};

}  // namespace

Parsed parse(std::string_view source) { return Parser(source).parse(); }

}  // namespace tessera::data::jinja
