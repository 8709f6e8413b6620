// What each source of the module tessera._core adds to it.
#pragma once

#include <pybind11/pybind11.h>

namespace tessera::python {

void bind_errors(pybind11::module_& module);  // first: the others' functions throw them
void bind_config(pybind11::module_& module);
void bind_layout(pybind11::module_& module);
void bind_world(pybind11::module_& module);
void bind_mesh(pybind11::module_& module);
void bind_context_axis(pybind11::module_& module);
void bind_experts(pybind11::module_& module);
void bind_tensor_axis(pybind11::module_& module);
void bind_optim(pybind11::module_& module);
void bind_zero(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_pipeline(pybind11::module_& module);
void bind_plan(pybind11::module_& module);
void bind_checkpoint(pybind11::module_& module);
void bind_environment(pybind11::module_& module);
void bind_monitor(pybind11::module_& module);
void bind_moved_states(pybind11::module_& module);  // after the engine

}  // namespace tessera::python
