// PipelineRun: the passes of a step over a pipeline, whose forwards are Python's.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "tessera/comm/mesh.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/pipeline_run.h"

namespace tessera::python {

namespace py = pybind11;
using engine::PipelineRun;

namespace {

// run_stage(stage, micro_batch, entering) -> tensors. Called without the GIL, by the thread that trains.
template <auto kMethod>
void run(PipelineRun& self, int micro_batches, const py::function& run_stage) {
  const py::gil_scoped_release no_gil;
  (self.*kMethod)(micro_batches, [&run_stage](const engine::StagePass& pass) {
    const py::gil_scoped_acquire gil;
    return run_stage(pass.stage, pass.micro_batch, pass.entering).cast<std::vector<at::Tensor>>();
  });
}

}  // namespace

void bind_pipeline(py::module_& module) {
  py::class_<PipelineRun>(module, "PipelineRun")
      .def(py::init([](Engine& engine, comm::Mesh& mesh, const std::string& schedule) {
             return std::make_unique<PipelineRun>(engine, mesh, schedule);
           }),
           py::arg("engine"), py::arg("mesh"), py::arg("schedule"), py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
      .def("train", &run<&PipelineRun::train>, py::arg("micro_batches"), py::arg("run_stage"),
           "run_stage(stage, micro_batch, entering) -> the tensors that leave; of the last stage its loss alone")
      .def("evaluate", &run<&PipelineRun::evaluate>, py::arg("micro_batches"), py::arg("run_stage"));
}

}  // namespace tessera::python
