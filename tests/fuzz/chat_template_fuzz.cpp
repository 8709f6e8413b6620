#include <nlohmann/json.hpp>

#include "tessera/data/jinja_template.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::chat_template_fuzz {

TESSERA_FUZZ_TARGET(chat_template) {
  const nlohmann::ordered_json user{{"role", "user"}, {"content", "Wie geht's?"}},
      answer{{"role", "assistant"}, {"content", "gut"}};
  const nlohmann::ordered_json variables{
      {"messages", {user, answer}}, {"tools", nullptr}, {"bos_token", "<s>"}, {"add_generation_prompt", true}};
  data::JinjaTemplate(bytes, "chat_template.jinja").render(variables);
}

}  // namespace tessera::fuzz::chat_template_fuzz
