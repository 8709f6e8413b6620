// Values of JSON from outside, by key, with an error that names the key and the file.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {

// The value as an integer of that type; std::out_of_range where it is none, or does not fit: what json.get() would make
// of 1e300 is undefined.
template <std::integral Whole>
Whole whole_of(const nlohmann::json& value) {
  if (value.is_number_unsigned() && std::in_range<Whole>(value.get<uint64_t>())) return value.get<Whole>();
  if (value.is_number_integer() && !value.is_number_unsigned() && std::in_range<Whole>(value.get<int64_t>())) {
    return value.get<Whole>();
  }
  throw std::out_of_range(fmt::format("{} is not a whole number that fits", value.dump().substr(0, 100)));
}

// Of a list of such; also nlohmann's exception where it is none.
template <std::integral Whole>
std::vector<Whole> wholes_of(const nlohmann::json& values) {
  std::vector<Whole> wholes;
  for (const auto& value : values.get_ref<const nlohmann::json::array_t&>()) wholes.push_back(whole_of<Whole>(value));
  return wholes;
}

// The object's value under the key; `otherwise` where it has none or null, or is no object. ErrorKind::kData for one of
// another type, with `where`: the file.
template <class Value>
Value json_value(const nlohmann::json& object, const char* key, Value otherwise, const std::string& where) {
  if (!object.is_object()) return otherwise;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  try {
    if constexpr (std::integral<Value> && !std::same_as<Value, bool>) {
      return whole_of<Value>(*found);
    } else {
      return found->get<Value>();
    }
  } catch (const std::exception&) {
    throw Error(ErrorKind::kData,
                {fmt::format("'{}' is {}, which has the wrong type", key, found->dump().substr(0, 100)), where,
                 "check the file, or get it again"});
  }
}

}  // namespace tessera
