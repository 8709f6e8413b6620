// tessera::Error as a Python exception: tessera._core.Error(what, where, fix), and one subclass for each kind. What
// Python code raised inside of C++ (a hook, an autograd.Function) passes through as it was.
#include <torch/csrc/Exceptions.h>

#include <exception>
#include <string>
#include <utility>

#include "bindings.h"
#include "tessera/base/error.h"
#include "tessera/zero/state_update.h"

namespace tessera::python {

namespace py = pybind11;

namespace {

struct ClassText {
  const char* name;
  PyObject* also;  // the built-in exception that such errors are as well; borrowed
  const char* doc;
};

// In the order of ErrorKind; and the one of an exception that is a class of its own here as well. The module keeps the
// classes alive.
PyObject* classes[6] = {};
PyObject* unused_parameters = nullptr;

PyObject* class_of(ErrorKind kind) { return classes[static_cast<int>(kind)]; }

void raise(const Error& error, PyObject* error_class) {
  const py::object type = py::reinterpret_borrow<py::object>(error_class);
  const py::object value = type(py::str(error.what()));
  value.attr("what") = error.report().what;
  value.attr("where") = error.report().where;
  value.attr("fix") = error.report().fix;
  PyErr_SetObject(type.ptr(), value.ptr());
}

// Borrowed.
PyObject* new_class(py::module_& module, const ClassText& text, const py::object& base) {
  const py::tuple bases = py::make_tuple(base, py::reinterpret_borrow<py::object>(text.also));
  const std::string name = std::string("tessera._core.") + text.name;
  const py::object type =
      py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(name.c_str(), text.doc, bases.ptr(), nullptr));
  module.attr(text.name) = type;
  return type.ptr();
}

}  // namespace

void bind_errors(py::module_& module) {
  const py::object base = py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      "tessera._core.Error", "Something a user, a peer or the machine did wrong: .what, .where, .fix",
      PyExc_RuntimeError, nullptr));
  module.attr("Error") = base;
  const std::pair<ErrorKind, ClassText> kinds[] = {
      {ErrorKind::kUsage, {"UsageError", PyExc_ValueError, "A call that makes no sense"}},
      {ErrorKind::kConfig, {"ConfigError", PyExc_ValueError, "The configuration is wrong"}},
      {ErrorKind::kData, {"DataError", PyExc_ValueError, "A file is missing, damaged or does not fit"}},
      {ErrorKind::kMachine, {"MachineError", PyExc_OSError, "The machine refused"}},
      {ErrorKind::kPeer, {"PeerError", PyExc_ConnectionError, "Another rank is gone or late"}},
      {ErrorKind::kInternal, {"InternalError", PyExc_AssertionError, "A bug of Tessera's own"}}};
  for (const auto& [kind, text] : kinds) classes[static_cast<int>(kind)] = new_class(module, text, base);
  unused_parameters =
      new_class(module,
                {"UnusedParametersError", PyExc_AssertionError,
                 "zero_optimization.ignore_unused_parameters is false, and a parameter got no gradient"},
                module.attr("UsageError"));
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const zero::UnusedParameters& error) {
      raise(error, unused_parameters);
    } catch (const Error& error) {
      raise(error, class_of(error.kind()));
    } catch (python_error& error) {
      if (PyErr_Occurred() == nullptr) error.restore();  // autograd's engine may have done so already
    } catch (const c10::Error& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    }
  });
}

}  // namespace tessera::python
