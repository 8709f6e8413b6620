#include "tessera/engine/environment_facts.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/host_facts.h"
#include "tessera/comm/communication_facts.h"
#include "tessera/kernels/instruction_set.h"
#include "tessera/storage/device.h"
#include "tessera/storage/io_queue.h"

namespace tessera::engine {
namespace {

constexpr const char* kVersions = "versions";

#ifdef __clang__
constexpr const char* kCompiler = "Clang " __clang_version__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

// Of LibTorch's "Build settings: …, TORCH_VERSION=2.13.0, USE_CUDA=0, …".
std::string build_setting(const std::string& name) {
  const std::string settings = at::show_config();
  const std::string mark = " " + name + "=";
  const size_t found = settings.find(mark);
  if (found == std::string::npos) return "";
  const size_t begin = found + mark.size();
  return settings.substr(begin, settings.find(',', begin) - begin);
}

bool is_on(const std::string& setting) { return setting == "ON" || setting == "1"; }

std::vector<Fact> version_facts() {
  const bool has_cuda = is_on(build_setting("USE_CUDA"));
  const bool has_nccl = is_on(build_setting("USE_NCCL"));
  std::string devices = has_cuda ? "CUDA" : "CPUs alone";
  if (has_nccl) devices += ", NCCL";
  utsname system{};
  uname(&system);
  return {{.topic = kVersions, .name = "tessera", .value = TESSERA_VERSION},
          {.topic = kVersions, .name = "compiler", .value = kCompiler},
          {.topic = kVersions, .name = "LibTorch", .value = libtorch_version()},
          {.topic = kVersions, .name = "LibTorch, built with", .value = TORCH_VERSION},
          {.topic = kVersions, .name = "LibTorch, built for", .value = devices},
          {.topic = kVersions, .name = "kernel", .value = fmt::format("{} {}", system.sysname, system.release)}};
}

// How many threads compute, and with which instructions.
std::vector<Fact> computing_facts() {
  constexpr const char* kTopic = "computing";
  return {{.topic = kTopic, .name = "instructions of Tessera", .value = kernels::instruction_set()},
          {.topic = kTopic, .name = "instructions of LibTorch", .value = at::get_cpu_capability()},
          fact_of_count(kTopic, "threads of LibTorch", static_cast<uint64_t>(at::get_num_threads())),
          fact_of_count(kTopic, "CUDA devices", static_cast<uint64_t>(storage::device_count(c10::kCUDA)))};
}

std::vector<Fact> file_facts() {
  Fact engine{.topic = "files of offloads", .name = "engine", .value = "none"};
  try {
    engine.value = storage::IoQueue().engine();
    if (engine.value == "threads") {
      engine.value = "threads: the kernel refuses io_uring, or TESSERA_IO asks for them";
    }
  } catch (const Error& error) {  // of TESSERA_IO
    engine.warning = fmt::format("{}: {}", error.report().what, error.report().fix);
  }
  return {engine};
}

}  // namespace

std::vector<Fact> environment_facts() {
  return joined({version_facts(), computing_facts(), host_facts(), comm::communication_facts(), file_facts()});
}

std::string libtorch_version() { return build_setting("TORCH_VERSION"); }

}  // namespace tessera::engine
