// Templates of Jinja, as far as chat templates use the language: output, if, for (with else, a condition, loop, break
// and continue), set (of names, of namespaces, of blocks), macro, filter, raw and transformers' generation; expressions
// with filters, tests and the methods of Python's values. Rendered as transformers renders them: trim_blocks and
// lstrip_blocks on, nothing escaped, values that a template cannot change.
//
//   const JinjaTemplate greeting("Hello {{ name | title }}!", "greeting.jinja");
//   greeting.render({{"name", "ada"}}).text;   // "Hello Ada!"
//
// A template comes from outside: what it asks for is bounded (its size, its nesting, ten million steps, 2 MiB of text
// and of values and 8 bytes more for each byte that it is given). Immutable; safe to use from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::data {

class JinjaTemplate {
 public:
  // where: the file or key that it comes from, for messages. ErrorKind::kData for what is no template, or uses what is
  // not supported: it is named, with its line.
  JinjaTemplate(std::string_view source, std::string where);
  ~JinjaTemplate();
  JinjaTemplate(JinjaTemplate&&) noexcept;
  JinjaTemplate& operator=(JinjaTemplate&&) noexcept;

  struct Rendered {
    std::string text;
    // Of what stands between {% generation %} and {% endgeneration %}: where it begins and ends in the text, in bytes.
    std::vector<std::pair<size_t, size_t>> generated;
  };

  // variables: an object. ErrorKind::kData where the template refuses them (raise_exception), or needs what they lack.
  Rendered render(const nlohmann::ordered_json& variables) const;

  bool marks_generated() const;  // it has a {% generation %}

 private:
  struct Program;
  std::string where_;
  std::unique_ptr<const Program> program_;
};

}  // namespace tessera::data
