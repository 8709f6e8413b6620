// tessera._core: the engine as Python sees it. Every function that may wait or compute lets go of the GIL meanwhile.
#include "bindings.h"

PYBIND11_MODULE(_core, module) {
  using namespace tessera::python;
  module.attr("__version__") = TESSERA_VERSION;
  bind_errors(module);
  bind_config(module);
  bind_layout(module);
  bind_world(module);
  bind_mesh(module);
  bind_context_axis(module);
  bind_experts(module);
  bind_tensor_axis(module);
  bind_optim(module);
  bind_zero(module);
  bind_engine(module);
  bind_pipeline(module);
  bind_plan(module);
  bind_checkpoint(module);
  bind_environment(module);
  bind_monitor(module);
  bind_moved_states(module);
}
