#include "tessera/config/overrides.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/config/key_check.h"
#include "tessera/config/yaml_file.h"

namespace tessera::config {
namespace {

// What lies above the key must be an object, null or not there: from the top on, for what is in a list has no name.
void require_objects_above(const Pointer& key, const Document& document, const std::string& name) {
  std::vector<Pointer> above;
  for (Pointer at = key; !at.empty();) above.push_back(at = at.parent_pointer());
  for (auto at = above.rbegin(); at != above.rend() && document.value.contains(*at); ++at) {
    const Json& value = document.value.at(*at);
    if (value.is_object()) continue;
    if (value.is_null()) return;
    throw Error(ErrorKind::kUsage,
                {fmt::format("'{}' is not an object, so it has no key '{}'", dotted(*at), dotted(key)), name,
                 fmt::format("it is set at {}", document.place(*at).text())});
  }
}

}  // namespace

void apply_overrides(Document& document, const std::vector<std::string>& overrides, const std::string& shown_prefix) {
  for (const std::string& text : overrides) {
    const std::string name = "--set " + shown_prefix + text;
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error(ErrorKind::kUsage, {fmt::format("'{}' is not KEY=VALUE", text), name,
                                      "write --set KEY=VALUE, for example --set training.max_steps=50"});
    }
    const std::string path = text.substr(0, equals);
    if (path.starts_with('.') || path.ends_with('.') || path.find("..") != std::string::npos) {
      throw Error(ErrorKind::kUsage, {fmt::format("'{}' is not a key", path), name,
                                      "write names with a dot between them, for example training.max_steps"});
    }
    if (!is_utf8(path))
      throw Error(ErrorKind::kUsage, {"the key is not valid UTF-8", name, "write the key as docs/config.md does"});
    const Pointer key = pointer_to(path);
    require_objects_above(key, document, name);
    document.set(key, parse_yaml(text.substr(equals + 1), name).value, {name, 0, 0});
  }
}

}  // namespace tessera::config
