// Python's plain values as JSON, and back.
#pragma once

#include <pybind11/pybind11.h>

#include "tessera/config/where.h"

namespace tessera::python {

// None, bool, int, float (infinity included), str, and lists, tuples and dicts of these; a number of another library
// as what its item() gives, anything else as its str(). Dict keys become text.
config::Json json_of(pybind11::handle value);

pybind11::object object_of(const config::Json& value);

}  // namespace tessera::python
