// Values of Jinja templates (jinja_template.h), which behave as Python's: what is true, equal or less, how one is
// written, and what its methods do. Lists and maps never change; a Namespace does.
//
// What a template may not do is an Error of ErrorKind::kData without a place: the template knows its line.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::data::jinja {

class Value;
using List = std::vector<Value>;
using Entries = std::vector<std::pair<std::string, Value>>;  // in the order in which they were written

// How much the values of a rendering may take together. While one lives, values that its thread makes count.
class Meter {
 public:
  explicit Meter(size_t most);  // bytes
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  void add(size_t bytes);  // fails where that is too much
  void remove(size_t bytes) { live_ -= bytes; }
  static Meter* current();  // null: nothing counts
  static size_t room();     // bytes that one more value may have

  // Of a text that is being made, or of many: fails where they are more than room().
  static void require_room(size_t bytes);

 private:
  size_t most_;
  size_t live_ = 0;
  Meter* outer_;
};

// A value's content, which its copies share. It ends before its meter.
template <class Content>
class Shared {
 public:
  Shared(Content content, size_t bytes) : content_(std::move(content)), bytes_(bytes), meter_(Meter::current()) {
    if (meter_ != nullptr) meter_->add(bytes);
  }
  ~Shared() {
    if (meter_ != nullptr) meter_->remove(bytes_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  const Content& content() const { return content_; }

 private:
  Content content_;
  size_t bytes_;
  Meter* meter_;
};

struct Undefined {
  std::string what;  // "'tools' is undefined": for whoever needs a value
};
struct None {};

struct Arguments {
  std::vector<Value> values;
  Entries named;
};

struct Function {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

struct Namespace {
  std::map<std::string, Value, std::less<>> values;
};

class Value {
 public:
  template <class Content>
  using Held = std::shared_ptr<const Shared<Content>>;
  using Any = std::variant<Undefined, None, bool, int64_t, double, Held<std::string>, Held<List>, Held<Entries>,
                           std::shared_ptr<Namespace>, std::shared_ptr<const Function>>;

  Value() : any_(Undefined{"a value is undefined"}) {}
  Value(Undefined undefined) : any_(std::move(undefined)) {}
  Value(None none) : any_(none) {}
  Value(bool value) : any_(value) {}
  Value(int64_t value) : any_(value) {}
  Value(double value) : any_(value) {}
  Value(std::string value);
  Value(const char* value) : Value(std::string(value)) {}
  Value(List items);
  Value(Entries entries);
  Value(std::shared_ptr<Namespace> names) : any_(std::move(names)) {}
  Value(Function function) : any_(std::make_shared<const Function>(std::move(function))) {}

  // Null where it is something else.
  const Undefined* undefined() const { return std::get_if<Undefined>(&any_); }
  const std::string* text() const { return content<std::string>(); }
  const int64_t* whole() const { return std::get_if<int64_t>(&any_); }
  const double* real() const { return std::get_if<double>(&any_); }
  const bool* truth() const { return std::get_if<bool>(&any_); }
  const List* list() const { return content<List>(); }
  const Entries* entries() const { return content<Entries>(); }
  Namespace* names() const { return pointee<Namespace>(); }
  const Function* function() const { return pointee<const Function>(); }
  bool is_none() const { return std::holds_alternative<None>(any_); }
  bool is_number() const { return whole() != nullptr || real() != nullptr || truth() != nullptr; }

  const char* type() const;  // in Python's words: "str"

 private:
  template <class Content>
  const Content* content() const {
    const auto* const held = std::get_if<Held<Content>>(&any_);
    return held == nullptr ? nullptr : &(*held)->content();
  }
  template <class Pointee>
  Pointee* pointee() const {
    const auto* const held = std::get_if<std::shared_ptr<Pointee>>(&any_);
    return held == nullptr ? nullptr : held->get();
  }

  Any any_;
};

[[noreturn]] void fail(const std::string& what);

Value value_of(const nlohmann::ordered_json& json);

bool is_true(const Value& value);
bool are_equal(const Value& left, const Value& right);
bool is_less(const Value& left, const Value& right);  // fails where Python cannot tell
bool is_in(const Value& item, const Value& container);

std::string written(const Value& value);  // str()
std::string quoted(const Value& value);   // repr()

struct JsonStyle {
  int64_t indent = -1;  // spaces a level; below 0: all on one line
  bool ascii = false;   // \u for whatever is not ASCII
  bool sorted = false;  // keys
};
std::string json_of(const Value& value, const JsonStyle& style);  // json.dumps()

double number_of(const Value& value);  // fails where it is none
int64_t whole_of(const Value& value);  // the same, of a whole one
const std::string& text_of(const Value& value);

int64_t length_of(const Value& value);  // of text in characters
List items_of(const Value& value);      // what a loop goes over: characters, items, keys

// "x.name" and "x[key]". What is not there is Undefined.
Value attribute(const Value& of, const std::string& name);
Value item(const Value& of, const Value& key);
const Value* find(const Entries& entries, std::string_view key);

// x[first:last:step]
Value slice(const Value& of, const Value& first, const Value& last, const Value& step);

// "a + b" and so on; `sign` as it is written.
Value calculate(std::string_view sign, const Value& left, const Value& right);
Value negated(const Value& value);

// A method of a str, dict or list: a Function bound to it; Undefined where it has none of that name.
Value method(const Value& of, const std::string& name);

// The arguments by their names, in the order of `names`; Undefined where one is not given. Fails for others.
std::vector<Value> bound(const Arguments& arguments, const std::string& function,
                         std::initializer_list<std::string_view> names);

std::string upper(const std::string& text);
std::string lower(const std::string& text);
std::string capitalized(const std::string& text);
std::string stripped(const std::string& text, const Value& characters, bool left = true, bool right = true);
std::string replaced(const std::string& text, const std::string& what, const std::string& with, int64_t count);
std::vector<std::string> lines_of(const std::string& text);  // str.splitlines()

}  // namespace tessera::data::jinja
