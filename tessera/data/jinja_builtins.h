// What every template can name: filters ("x | trim"), tests ("x is defined") and functions ("range(3)"), as Jinja 2.11
// and transformers' apply_chat_template have them.
#pragma once

#include <string>

#include "tessera/data/jinja_value.h"

namespace tessera::data::jinja {

// Fails for a name that there is not, with the nearest that there is.
using Filter = Value (*)(const Value& value, const Arguments& arguments);
Filter find_filter(const std::string& name);

using Test = bool (*)(const Value& value, const Arguments& arguments);
Test find_test(const std::string& name);

// range, namespace, dict, raise_exception, strftime_now.
Entries global_functions();

}  // namespace tessera::data::jinja
