// Jinja's expressions, over the tokens of one piece (jinja_lexer.h): the grammar of Jinja's own parser, as functions
// that make functions. Throws Mistake.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/data/jinja_builtins.h"
#include "tessera/data/jinja_lexer.h"
#include "tessera/data/jinja_program.h"

namespace tessera::data::jinja {

// The arguments of a call, to be evaluated.
struct CallParts {
  std::vector<Expression> values;
  std::vector<std::pair<std::string, Expression>> named;

  Arguments evaluate(State& state) const;
};

struct FilterCall {
  Filter filter;
  CallParts parts;
};

Value filtered(State& state, Value value, const std::vector<FilterCall>& filters);

class ExpressionParser {
 protected:
  // The tokens that are parsed from now on, which outlive that.
  void start(const std::vector<Token>& tokens);

  Expression expression();
  Expression tuple_or_expression(bool with_condition = true);  // "a, b" is a list
  FilterCall filter_call();
  std::vector<FilterCall> filters_until_end();

  const Token& current() const { return ahead(0); }
  int line() const { return tokens_ == nullptr ? 1 : current().line; }
  bool is_sign(std::string_view sign) const;
  bool take_sign(std::string_view sign);  // whether it stands here; then it is passed
  bool take_name(std::string_view name);
  void expect_sign(std::string_view sign);
  std::string expect_name();
  void expect_end();

  // While it lives, what is parsed stands one level deeper.
  class Deeper {
   public:
    explicit Deeper(ExpressionParser& parser);
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

 private:
  using Rule = Expression (ExpressionParser::*)();

  // Weakest first.
  Expression or_expression();
  Expression and_expression();
  Expression not_expression();
  Expression comparison();
  Expression sum() { return from_left(&ExpressionParser::concatenation, {"+", "-"}); }
  Expression concatenation() { return from_left(&ExpressionParser::product, {"~"}); }
  Expression product() { return from_left(&ExpressionParser::power, {"*", "//", "/", "%"}); }
  Expression power() { return from_left(&ExpressionParser::unary_with_filters, {"**"}); }
  Expression unary_with_filters() { return unary(/*with_filters=*/true); }
  Expression unary(bool with_filters);
  Expression primary();
  Expression in_brackets();
  Expression map();
  Expression with_postfixes(Expression value);
  Expression with_subscript(Expression value);
  Expression with_filters_and_tests(Expression value);
  Expression with_test(Expression value);
  Expression from_left(Rule rule, std::initializer_list<const char*> signs);

  void items_until(const char* end, const std::function<void()>& parse_one);
  std::vector<Expression> expressions_until(const char* end);
  CallParts call_parts();
  std::string comparing_sign();
  bool begins_argument() const;

  const Token& ahead(size_t count) const;
  void chain();  // one more operation on what an operation gave

  const std::vector<Token>* tokens_ = nullptr;
  size_t at_ = 0;
  int depth_ = 0;
  int chained_ = 0;
};

}  // namespace tessera::data::jinja
