#include "tessera/data/jinja_expressions.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::data::jinja {
namespace {

using Kind = Token::Kind;

constexpr int kDeepest = 60;        // brackets and blocks inside each other
constexpr int kLongestChain = 300;  // operations on operations in one piece, each of which is a call inside the next

Expression constant(Value value) {
  return [value = std::move(value)](State&) { return value; };
}

Expression list_of(std::vector<Expression> items) {
  return [items = std::move(items)](State& state) {
    List list;
    for (const Expression& item : items) list.push_back(item(state));
    return Value(std::move(list));
  };
}

Expression named(const std::string& name) {
  if (name == "true" || name == "True") return constant(true);
  if (name == "false" || name == "False") return constant(false);
  if (name == "none" || name == "None") return constant(None{});
  return [name](State& state) { return state.look_up(name); };
}

bool holds(const std::string& sign, const Value& left, const Value& right) {
  if (sign == "==") return are_equal(left, right);
  if (sign == "!=") return !are_equal(left, right);
  if (sign == "<") return is_less(left, right);
  if (sign == ">") return is_less(right, left);
  if (sign == "<=") return !is_less(right, left);
  if (sign == ">=") return !is_less(left, right);
  return is_in(left, right) == (sign == "in");
}

Value call(State& state, const Value& function, const Arguments& arguments) {
  if (function.undefined() != nullptr) fail(function.undefined()->what);
  if (function.function() == nullptr) fail(fmt::format("a {} cannot be called", function.type()));
  state.step();
  return function.function()->call(arguments);
}

Expression called(Expression function, CallParts parts) {
  return [function = std::move(function), parts = std::move(parts)](State& state) {
    const Value of = function(state);
    return call(state, of, parts.evaluate(state));
  };
}

// A name that the tables do not have is a mistake of the template.
template <class Find>
auto known(const std::string& name, int line, Find find) {
  try {
    return find(name);
  } catch (const Error& unknown) {
    throw Mistake{unknown.report().what, line};
  }
}

}  // namespace

Arguments CallParts::evaluate(State& state) const {
  Arguments arguments;
  for (const Expression& value : values) arguments.values.push_back(value(state));
  for (const auto& [name, value] : named) arguments.named.emplace_back(name, value(state));
  return arguments;
}

Value filtered(State& state, Value value, const std::vector<FilterCall>& filters) {
  for (const FilterCall& each : filters) value = each.filter(value, each.parts.evaluate(state));
  return value;
}

ExpressionParser::Deeper::Deeper(ExpressionParser& parser) : depth_(parser.depth_) {
  if (depth_ == kDeepest) throw Mistake{"it is nested too deep", parser.line()};
  ++depth_;
}

void ExpressionParser::chain() {
  if (++chained_ > kLongestChain)
    throw Mistake{fmt::format("an expression has more than {} operations", kLongestChain), line()};
}

void ExpressionParser::start(const std::vector<Token>& tokens) {
  tokens_ = &tokens;
  at_ = 0;
  chained_ = 0;
}

const Token& ExpressionParser::ahead(size_t count) const {
  return (*tokens_)[std::min(at_ + count, tokens_->size() - 1)];
}

bool ExpressionParser::is_sign(std::string_view sign) const {
  return current().kind == Kind::kSign && current().text == sign;
}

bool ExpressionParser::take_sign(std::string_view sign) {
  const bool is_there = is_sign(sign);
  at_ += is_there;
  return is_there;
}

bool ExpressionParser::take_name(std::string_view name) {
  const bool is_there = current().kind == Kind::kName && current().text == name;
  at_ += is_there;
  return is_there;
}

void ExpressionParser::expect_sign(std::string_view sign) {
  if (!take_sign(sign)) throw Mistake{fmt::format("'{}' is missing", sign), line()};
}

std::string ExpressionParser::expect_name() {
  if (current().kind != Kind::kName) throw Mistake{"a name is missing", line()};
  return (*tokens_)[at_++].text;
}

void ExpressionParser::expect_end() {
  if (current().kind != Kind::kEnd) throw Mistake{fmt::format("'{:.100}' is too much", current().text), line()};
}

// "a, b" is a list.
Expression ExpressionParser::tuple_or_expression(bool with_condition) {
  Expression first = with_condition ? expression() : or_expression();
  if (!is_sign(",")) return first;
  std::vector<Expression> items{std::move(first)};
  while (take_sign(",")) {
    if (current().kind == Kind::kEnd || is_sign(")")) break;
    items.push_back(with_condition ? expression() : or_expression());
  }
  return list_of(std::move(items));
}

Expression ExpressionParser::expression() {
  const Deeper deeper(*this);
  Expression value = or_expression();
  while (take_name("if")) {
    chain();
    Expression condition = or_expression();
    Expression otherwise;
    if (take_name("else")) otherwise = expression();
    value = [value = std::move(value), condition = std::move(condition),
             otherwise = std::move(otherwise)](State& state) {
      if (is_true(condition(state))) return value(state);
      return otherwise ? otherwise(state) : Value(Undefined{"an 'if' without an 'else' gave nothing"});
    };
  }
  return value;
}

Expression ExpressionParser::or_expression() {
  Expression left = and_expression();
  while (take_name("or")) {
    chain();
    left = [left = std::move(left), right = and_expression()](State& state) {
      Value value = left(state);
      return is_true(value) ? value : right(state);
    };
  }
  return left;
}

Expression ExpressionParser::and_expression() {
  Expression left = not_expression();
  while (take_name("and")) {
    chain();
    left = [left = std::move(left), right = not_expression()](State& state) {
      Value value = left(state);
      return is_true(value) ? right(state) : value;
    };
  }
  return left;
}

Expression ExpressionParser::not_expression() {
  if (!take_name("not")) return comparison();
  const Deeper deeper(*this);
  return [of = not_expression()](State& state) { return Value(!is_true(of(state))); };
}

// "a < b <= c" holds where each pair does.
Expression ExpressionParser::comparison() {
  Expression first = sum();
  std::vector<std::pair<std::string, Expression>> rest;
  for (std::string sign = comparing_sign(); !sign.empty(); sign = comparing_sign()) rest.emplace_back(sign, sum());
  if (rest.empty()) return first;
  return [first = std::move(first), rest = std::move(rest)](State& state) {
    Value left = first(state);
    for (const auto& [sign, operand] : rest) {
      Value right = operand(state);
      if (!holds(sign, left, right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  };
}

std::string ExpressionParser::comparing_sign() {
  for (const char* const sign : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (take_sign(sign)) return sign;
  }
  if (take_name("in")) return "in";
  if (current().kind == Kind::kName && current().text == "not" && ahead(1).text == "in" &&
      ahead(1).kind == Kind::kName) {
    at_ += 2;
    return "not in";
  }
  return "";
}

// Operands of `rule` with these signs between them, from the left.
Expression ExpressionParser::from_left(Rule rule, std::initializer_list<const char*> signs) {
  Expression left = (this->*rule)();
  for (;;) {
    const auto* const sign =
        std::find_if(signs.begin(), signs.end(), [&](const char* each) { return take_sign(each); });
    if (sign == signs.end()) return left;
    chain();
    left = [sign = *sign, left = std::move(left), right = (this->*rule)()](State& state) {
      const Value first = left(state);
      return calculate(sign, first, right(state));
    };
  }
}

Expression ExpressionParser::unary(bool with_filters) {
  const Deeper deeper(*this);
  Expression value;
  if (take_sign("-")) {
    value = [of = unary(false)](State& state) { return negated(of(state)); };
  } else if (take_sign("+")) {
    value = unary(false);
  } else {
    value = primary();
  }
  value = with_postfixes(std::move(value));
  return with_filters ? with_filters_and_tests(std::move(value)) : value;
}

Expression ExpressionParser::primary() {
  const Token token = current();
  switch (token.kind) {
    case Kind::kName:
      ++at_;
      return named(token.text);
    case Kind::kText: {
      std::string text;
      for (; current().kind == Kind::kText; ++at_) text += current().text;
      return constant(text);
    }
    case Kind::kWhole:
      ++at_;
      return constant(token.whole);
    case Kind::kReal:
      ++at_;
      return constant(token.real);
    case Kind::kSign:
      if (take_sign("(")) return in_brackets();
      if (take_sign("[")) return list_of(expressions_until("]"));
      if (take_sign("{")) return map();
      break;
    case Kind::kEnd:
      break;
  }
  throw Mistake{token.kind == Kind::kEnd ? "an expression is missing"
                                         : fmt::format("'{:.100}' stands where a value should", token.text),
                line()};
}

Expression ExpressionParser::in_brackets() {
  if (take_sign(")")) return list_of({});
  Expression value = tuple_or_expression();
  expect_sign(")");
  return value;
}

// "a, b" up to the closing mark, with or without a comma before that.
void ExpressionParser::items_until(const char* end, const std::function<void()>& parse_one) {
  for (bool is_first = true; !take_sign(end); is_first = false) {
    if (!is_first) {
      expect_sign(",");
      if (take_sign(end)) return;
    }
    parse_one();
  }
}

std::vector<Expression> ExpressionParser::expressions_until(const char* end) {
  std::vector<Expression> all;
  items_until(end, [&] { all.push_back(expression()); });
  return all;
}

Expression ExpressionParser::map() {
  std::vector<std::pair<Expression, Expression>> entries;
  items_until("}", [&] {
    Expression key = expression();
    expect_sign(":");
    entries.emplace_back(std::move(key), expression());
  });
  return [entries = std::move(entries)](State& state) {
    Entries made;
    for (const auto& [key, value] : entries) {
      const std::string name = text_of(key(state));
      const auto same = std::find_if(made.begin(), made.end(), [&](const auto& entry) { return entry.first == name; });
      same == made.end() ? static_cast<void>(made.emplace_back(name, value(state)))
                         : static_cast<void>(same->second = value(state));
    }
    return Value(std::move(made));
  };
}

// ".name", "[key]", "[first:last]", "(arguments)"
Expression ExpressionParser::with_postfixes(Expression value) {
  for (;; chain()) {
    if (take_sign(".")) {
      const Token token = current();
      ++at_;
      if (token.kind == Kind::kName) {
        value = [value = std::move(value), name = token.text](State& state) { return attribute(value(state), name); };
      } else if (token.kind == Kind::kWhole) {
        value = [value = std::move(value), index = token.whole](State& state) { return item(value(state), index); };
      } else {
        throw Mistake{"a name is missing after '.'", line()};
      }
    } else if (take_sign("[")) {
      value = with_subscript(std::move(value));
    } else if (take_sign("(")) {
      value = called(std::move(value), call_parts());
    } else {
      return value;
    }
  }
}

Expression ExpressionParser::with_subscript(Expression value) {
  std::vector<Expression> bounds(3, constant(None{}));
  size_t colons = 0;
  for (;;) {
    if (take_sign(":")) {
      if (++colons > 2) throw Mistake{"a slice has at most three parts", line()};
    } else if (take_sign("]")) {
      break;
    } else {
      bounds[colons] = expression();
      if (!is_sign(":") && !is_sign("]")) throw Mistake{"']' is missing", line()};
    }
  }
  if (colons == 0) {
    return [value = std::move(value), key = std::move(bounds[0])](State& state) {
      const Value of = value(state);
      return item(of, key(state));
    };
  }
  return [value = std::move(value), bounds = std::move(bounds)](State& state) {
    const Value of = value(state), first = bounds[0](state), last = bounds[1](state);
    return slice(of, first, last, bounds[2](state));
  };
}

// Behind the opening bracket.
CallParts ExpressionParser::call_parts() {
  CallParts parts;
  items_until(")", [&] {
    const bool is_named = current().kind == Kind::kName && ahead(1).kind == Kind::kSign && ahead(1).text == "=";
    if (!is_named) return parts.values.push_back(expression());
    const std::string name = expect_name();
    expect_sign("=");
    parts.named.emplace_back(name, expression());
  });
  return parts;
}

FilterCall ExpressionParser::filter_call() {
  const std::string name = expect_name();
  FilterCall found{.filter = known(name, line(), find_filter), .parts = {}};
  if (take_sign("(")) found.parts = call_parts();
  return found;
}

std::vector<FilterCall> ExpressionParser::filters_until_end() {
  std::vector<FilterCall> filters;
  while (take_sign("|")) filters.push_back(filter_call());
  expect_end();
  return filters;
}

Expression ExpressionParser::with_filters_and_tests(Expression value) {
  for (;; chain()) {
    if (take_sign("|")) {
      value = [value = std::move(value), call = filter_call()](State& state) {
        const Value of = value(state);
        return call.filter(of, call.parts.evaluate(state));
      };
    } else if (take_name("is")) {
      value = with_test(std::move(value));
    } else if (take_sign("(")) {
      value = called(std::move(value), call_parts());
    } else {
      return value;
    }
  }
}

Expression ExpressionParser::with_test(Expression value) {
  const bool wanted = !take_name("not");
  const std::string name = expect_name();
  const Test test = known(name, line(), find_test);
  CallParts parts;
  if (take_sign("(")) {
    parts = call_parts();
  } else if (begins_argument()) {
    parts.values.push_back(with_postfixes(primary()));
  }
  return [value = std::move(value), test, parts = std::move(parts), wanted](State& state) {
    const Value of = value(state);
    return Value(test(of, parts.evaluate(state)) == wanted);
  };
}

// "x is divisibleby 3": an argument without brackets.
bool ExpressionParser::begins_argument() const {
  const Token& token = current();
  if (token.kind == Kind::kName) {
    constexpr std::string_view kOperators[] = {"else", "or", "and", "is", "if", "not", "in"};
    return std::find(std::begin(kOperators), std::end(kOperators), token.text) == std::end(kOperators);
  }
  return token.kind == Kind::kText || token.kind == Kind::kWhole || token.kind == Kind::kReal || is_sign("[") ||
         is_sign("{");
}

}  // namespace tessera::data::jinja
