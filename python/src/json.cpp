#include "json.h"

#include <string>

namespace tessera::python {

namespace py = pybind11;
using config::Json;

Json json_of(py::handle value) {
  if (value.is_none()) return nullptr;
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::isinstance<py::dict>(value)) {
    Json object = Json::object();
    for (const auto& [key, each] : py::reinterpret_borrow<py::dict>(value)) {
      object[py::str(key).cast<std::string>()] = json_of(each);
    }
    return object;
  }
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    Json list = Json::array();
    for (const py::handle each : value) list.push_back(json_of(each));
    return list;
  }
  if (py::hasattr(value, "item")) return json_of(value.attr("item")());
  return py::str(value).cast<std::string>();
}

py::object object_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
    case Json::value_t::discarded:
      return py::none();
    case Json::value_t::boolean:
      return py::bool_(value.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return py::int_(value.get<int64_t>());
    case Json::value_t::number_float:
      return py::float_(value.get<double>());
    case Json::value_t::object: {
      py::dict object;
      for (const auto& [key, each] : value.items()) object[py::str(key)] = object_of(each);
      return object;
    }
    case Json::value_t::array: {
      py::list list;
      for (const Json& each : value) list.append(object_of(each));
      return list;
    }
    default:
      return py::str(value.get<std::string>());
  }
}

}  // namespace tessera::python
