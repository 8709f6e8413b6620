// World: the ranks that train together, over the store of torch.distributed's group; what is of a whole process.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "tessera/base/log.h"
#include "tessera/base/main_stack.h"
#include "tessera/comm/backends.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/connection.h"
#include "tessera/comm/exchange_backend.h"
#include "tessera/comm/group.h"
#include "tessera/comm/store/bounded_store.h"
#include "tessera/storage/cpu_allocator.h"

namespace tessera::python {

namespace py = pybind11;
using comm::Group;

namespace {

std::shared_ptr<Group> connect(int rank, int size, int local_rank, const std::string& master_addr,
                               const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                               c10d::Backend* nccl, double timeout) {
  const comm::World world{.rank = rank, .local_rank = local_rank, .size = size, .master_addr = master_addr};
  const auto wait = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1e3));
  return comm::connect(world, store, name, {.timeout = wait},
                       c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(nccl));
}

c10::intrusive_ptr<c10d::Store> open_store(std::chrono::milliseconds timeout) {
  return comm::open_store_for_torch(comm::world_from_environment(), timeout);
}

// What torch.distributed asks of a backend that is registered with it under `name`.
auto backend_maker(const char* name, comm::MakeExchange make_exchange) {
  return [=](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
    auto bounded = c10::make_intrusive<comm::BoundedStore>(store, comm::kStoreOfTorch, timeout);
    auto exchange = make_exchange({std::move(bounded), comm::World{.rank = rank, .size = size}, timeout});
    return comm::make_c10d_backend(name, std::move(exchange), rank, size, timeout);
  };
}

}  // namespace

void bind_world(py::module_& module) {
  py::class_<Group, std::shared_ptr<Group>>(module, "World")
      .def_static("alone", &Group::alone)
      .def_static("connect", &connect, py::arg("rank"), py::arg("size"), py::arg("local_rank"), py::arg("master_addr"),
                  py::arg("store"), py::arg("name"), py::arg("nccl") = nullptr, py::arg("timeout") = 0.0,
                  "Collective. nccl: torch's own group of that kind over the same ranks; None: it has none. timeout: "
                  "seconds for each wait; 0: TESSERA_TIMEOUT, or 600",
                  py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("size", &Group::size)
      .def("exchange_texts", &Group::exchange_texts, py::arg("mine"), py::arg("label"),
           "Collective. Returns every rank's text", py::call_guard<py::gil_scoped_release>())
      .def("barrier", &Group::barrier, py::arg("label"), py::call_guard<py::gil_scoped_release>());
  const auto def_backend = [&](const char* maker, const char* name, comm::MakeExchange make_exchange) {
    module.def(maker, backend_maker(name, make_exchange), py::arg("store"), py::arg("rank"), py::arg("size"),
               py::arg("timeout"), "For torch.distributed. Collective", py::call_guard<py::gil_scoped_release>());
  };
  def_backend("make_shm_backend", "shm", comm::make_shm_exchange);
  def_backend("make_mpi_backend", "tessera_mpi", comm::make_mpi_exchange);
  module.def("open_store", &open_store, py::arg("timeout"),
             "Collective. The run's store for torch.distributed, of the world in the environment. timeout: of its "
             "waits, a timedelta",
             py::call_guard<py::gil_scoped_release>());
  module.def("release_free_cpu_memory", &storage::release_free_cpu_memory, py::call_guard<py::gil_scoped_release>());
  module.def("set_log_rank", &set_log_rank, py::arg("rank"), py::arg("world_size"));
  module.def("main_stack_signal", &main_stack_signal,
             "The signal that asks this process's main thread where it is; 0: there is none");
  module.def("set_script_stack_file", &set_script_stack_file, py::arg("file"),
             "A descriptor to which a handler of that signal writes where the main thread is in Python");
  module.def("start_collective_log", &comm::start_collective_log);
  module.def(
      "take_collective_log",
      [] {
        std::vector<std::tuple<std::string, int64_t, double>> costs;
        for (const comm::CollectiveCost& cost : comm::take_collective_log()) {
          costs.emplace_back(cost.operation, cost.bytes, std::chrono::duration<double, std::milli>(cost.time).count());
        }
        return costs;
      },
      "Of the engines' collectives since the last call: (operation, bytes of its message, milliseconds)");
  module.def("log_info", [](const std::string& text) { write_info(text); });
  module.def("log_warning", [](const std::string& text) { write_warning(text); });
}

}  // namespace tessera::python
