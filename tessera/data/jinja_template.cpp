#include "tessera/data/jinja_template.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/data/jinja_builtins.h"
#include "tessera/data/jinja_lexer.h"
#include "tessera/data/jinja_program.h"

namespace tessera::data {
namespace jinja {

Value State::look_up(const std::string& name) const {
  for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
    const auto found = scope->find(name);
    if (found != scope->end()) return found->second;
  }
  return Undefined{fmt::format("'{:.100}' is undefined", name)};
}

void State::step() {
  if (++steps > kMostSteps) fail("it takes more than ten million steps");
}

void State::write(std::string_view text) {
  if (out->size() + text.size() > most_text) fail("the text is far larger than what it is made of");
  out->append(text);
}

}  // namespace jinja

namespace {

constexpr size_t kLargestTemplate = size_t{1} << 20;  // bytes
constexpr size_t kSmallRoom = size_t{2} << 20;        // bytes of text, and of values, that any rendering may make, …
constexpr size_t kRoomEach = 8;                       // … and for each byte of what it is given

// Bytes of its texts, about.
size_t size_of(const nlohmann::ordered_json& value) {
  size_t size = 32;
  if (value.is_string()) size += value.get_ref<const std::string&>().size();
  if (!value.is_structured()) return size;
  for (const auto& [key, each] : value.items()) size += key.size() + size_of(each);
  return size;
}

}  // namespace

struct JinjaTemplate::Program {
  jinja::Parsed parsed;
};

JinjaTemplate::JinjaTemplate(std::string_view source, std::string where) : where_(std::move(where)) {
  if (source.size() > kLargestTemplate) {
    throw Error(ErrorKind::kData, {"the template is larger than 1 MiB", where_, "check the file, or get it again"});
  }
  try {
    program_ = std::make_unique<const Program>(Program{jinja::parse(source)});
  } catch (const jinja::Mistake& mistake) {
    throw Error(ErrorKind::kData, {"the template cannot be read: " + mistake.what,
                                   fmt::format("{}, line {} of the template", where_, mistake.line),
                                   "mend the template, or name another"});
  }
}

JinjaTemplate::~JinjaTemplate() = default;
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;

JinjaTemplate::Rendered JinjaTemplate::render(const nlohmann::ordered_json& variables) const {
  Rendered rendered;
  const size_t room = kSmallRoom + kRoomEach * size_of(variables);
  const jinja::Meter meter(room);
  jinja::State state;
  state.most_text = room;
  state.out = &rendered.text;
  state.scopes.resize(2);  // what is given, and what the template sets
  try {
    for (auto& [name, value] : jinja::global_functions()) state.scopes[0].emplace(name, std::move(value));
    for (const auto& [name, value] : variables.items()) state.scopes[0].insert_or_assign(name, jinja::value_of(value));
    program_->parsed.body(state);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData || !error.report().where.empty()) throw;
    throw Error(ErrorKind::kData, {"the template fails: " + error.report().what,
                                   fmt::format("{}, line {} of the template", where_, state.line), ""});
  }
  rendered.generated = std::move(state.generated);
  return rendered;
}

bool JinjaTemplate::marks_generated() const { return program_->parsed.marks_generated; }

}  // namespace tessera::data
