// NCCL, loaded at run time: its C interface (nccl.h of NCCL 2.14, which later releases of NCCL 2 keep) as far as it is
// used here, declared from NVIDIA's documentation, so that neither NCCL's nor CUDA's headers are needed to build.
//
// TESSERA_NCCL_LIBRARY names the file: libnccl.so.2 is looked for as any library is, and a CUDA LibTorch has brought it
// into the process already. It is not loaded unasked, as it has not run on a GPU yet. Loaded once in a process and
// never unloaded; any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace tessera::comm::nccl {

// ncclResult_t
enum class Result : int { kSuccess = 0, kRemoteError = 6, kInProgress = 7 };

// ncclDataType_t
enum class DataType : int { kInt8 = 0, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9 };

// ncclRedOp_t: the sum, or a number that make_scaled_sum gave.
using Reduction = int;
inline constexpr Reduction kSum = 0;

// ncclComm_t
using CommHandle = struct OpaqueComm*;

struct UniqueId {
  char bytes[128];
};

// ncclConfig_t as it was in 2.14: NCCL goes by `size` and `version`, and gives what came later its defaults.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// The functions, without `nccl` before their names, of the library itself or of what stands for it (torch_library.h).
// Streams are those of the device: c10::Stream::native_handle().
struct Library {
  std::string name;                  // "NCCL 2.27.3"
  bool aborts_beside_calls = false;  // comm_abort ends a call of another thread; else no two may be under way at once

  std::function<Result(UniqueId* id)> get_unique_id;
  std::function<Result(CommHandle* comm, int size, UniqueId id, int rank, Config* config)> comm_init_rank_config;
  std::function<Result(CommHandle comm, Result* error)> comm_get_async_error;
  std::function<Result(CommHandle comm)> comm_finalize, comm_destroy, comm_abort;
  std::function<const char*(Result result)> get_error_string;

  // `send`, `receive`, the elements of which it is given the count, …
  using Collective = Result(const void*, void*, size_t, DataType, CommHandle, void* stream);
  using Sum = Result(const void*, void*, size_t, DataType, Reduction, CommHandle, void* stream);
  std::function<Collective> all_gather;  // of `send`
  std::function<Sum> reduce_scatter;     // of `receive`
  std::function<Sum> all_reduce;
  std::function<Result(const void* send, void* receive, size_t, DataType, int root, CommHandle, void* stream)>
      broadcast;
  std::function<Result(const void* buffer, size_t count, DataType, int peer, CommHandle, void* stream)> send;
  std::function<Result(void* buffer, size_t count, DataType, int peer, CommHandle, void* stream)> receive;
  std::function<Result()> group_start, group_end;
  std::function<Result(Reduction* reduction, void* scalar, DataType, int residence, CommHandle)>
      red_op_create_pre_mul_sum;
  std::function<Result(Reduction reduction, CommHandle)> red_op_destroy;
};

// ncclScalarHostImmediate, of red_op_create_pre_mul_sum
inline constexpr int kScalarOnHost = 1;

// What TESSERA_NCCL_LIBRARY names; nothing where it is not set, or "off", which is_off() tells apart.
std::optional<std::string> library_name();
bool is_off();

// ErrorKind::kMachine: it cannot be loaded, lacks a function, or is older than 2.14.
Library load_library(const std::string& name);

// That of library_name(), loaded at the first call. Errors: see load_library; each call throws anew.
const Library& library_of_this_process();

}  // namespace tessera::comm::nccl
