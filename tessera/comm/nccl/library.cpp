#include "tessera/comm/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "tessera/base/env.h"
#include "tessera/base/error.h"

namespace tessera::comm::nccl {
namespace {

constexpr const char* kVariable = "TESSERA_NCCL_LIBRARY";
constexpr int kOldest = 21400;  // the first with communicators that do not block

constexpr const char* kFix =
    "install the NCCL that PyTorch asks for (the package nvidia-nccl), or set TESSERA_NCCL_LIBRARY=off, and tensors go "
    "through host memory";

std::string in_words(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

template <class Result, class... Arguments>
void find(void* library, const std::string& library_name, const char* name,
          std::function<Result(Arguments...)>& function) {
  function = reinterpret_cast<Result (*)(Arguments...)>(dlsym(library, name));
  if (function) return;
  throw Error(ErrorKind::kMachine, {fmt::format("'{}' has no function {}: it is no NCCL, or older than {}",
                                                library_name, name, in_words(kOldest)),
                                    kVariable, kFix});
}

}  // namespace

std::optional<std::string> library_name() {
  const std::optional<std::string> name = env_text(kVariable);
  return name == "off" ? std::nullopt : name;
}

bool is_off() { return env_text(kVariable) == "off"; }

Library load_library(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(ErrorKind::kMachine, {fmt::format("NCCL could not be loaded: {}", dlerror()), kVariable, kFix});
  }
  std::function<Result(int*)> get_version;
  find(library, name, "ncclGetVersion", get_version);
  int version = 0;
  if (get_version(&version) != Result::kSuccess) version = 0;
  if (version < kOldest) {
    throw Error(ErrorKind::kMachine, {fmt::format("NCCL in '{}' has the version {}, which is older than {}", name,
                                                  in_words(version), in_words(kOldest)),
                                      kVariable, kFix});
  }
  Library nccl;
  nccl.name = fmt::format("NCCL {}", in_words(version));
  find(library, name, "ncclGetUniqueId", nccl.get_unique_id);
  find(library, name, "ncclCommInitRankConfig", nccl.comm_init_rank_config);
  find(library, name, "ncclCommGetAsyncError", nccl.comm_get_async_error);
  find(library, name, "ncclCommFinalize", nccl.comm_finalize);
  find(library, name, "ncclCommDestroy", nccl.comm_destroy);
  find(library, name, "ncclCommAbort", nccl.comm_abort);
  find(library, name, "ncclGetErrorString", nccl.get_error_string);
  find(library, name, "ncclAllGather", nccl.all_gather);
  find(library, name, "ncclReduceScatter", nccl.reduce_scatter);
  find(library, name, "ncclAllReduce", nccl.all_reduce);
  find(library, name, "ncclBroadcast", nccl.broadcast);
  find(library, name, "ncclSend", nccl.send);
  find(library, name, "ncclRecv", nccl.receive);
  find(library, name, "ncclGroupStart", nccl.group_start);
  find(library, name, "ncclGroupEnd", nccl.group_end);
  find(library, name, "ncclRedOpCreatePreMulSum", nccl.red_op_create_pre_mul_sum);
  find(library, name, "ncclRedOpDestroy", nccl.red_op_destroy);
  return nccl;
}

const Library& library_of_this_process() {
  static const Library library = load_library(library_name().value_or("off"));
  return library;
}

}  // namespace tessera::comm::nccl
