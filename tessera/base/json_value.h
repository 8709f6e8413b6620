// Values of JSON from outside, by key, with an error that names the key and the file.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tessera/base/error.h"

namespace tessera {

// The object's value under the key; `otherwise` where it has none or null, or is no object. ErrorKind::kData for one of
// another type, with `where`: the file.
template <class Value>
Value json_value(const nlohmann::json& object, const char* key, Value otherwise, const std::string& where) {
  if (!object.is_object()) return otherwise;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  try {
    return found->get<Value>();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kData,
                {fmt::format("'{}' is {}, which has the wrong type", key, found->dump().substr(0, 100)), where,
                 "check the file, or get it again"});
  }
}

}  // namespace tessera
