#include "tessera/config/overrides.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/config/key_check.h"
#include "tessera/config/yaml_file.h"

namespace tessera::config {

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
    for (Pointer at = key.parent_pointer();; at = at.parent_pointer()) {
      const bool usable =
          !document.value.contains(at) || document.value.at(at).is_object() || document.value.at(at).is_null();
      if (!usable) {
        throw Error(ErrorKind::kUsage,
                    {fmt::format("'{}' is not an object, so it has no key '{}'", dotted(at), dotted(key)), name,
                     fmt::format("it is set at {}", document.place(at).text())});
      }
      if (at.empty()) break;
    }
    document.set(key, parse_yaml(text.substr(equals + 1), name).value, {name, 0, 0});
  }
}

}  // namespace tessera::config
