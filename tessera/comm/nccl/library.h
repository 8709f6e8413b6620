// NCCL, loaded at run time: its C interface (nccl.h of NCCL 2.14, which later releases of NCCL 2 keep) as far as it is
// used here, declared from NVIDIA's documentation, so that neither NCCL's nor CUDA's headers are needed to build.
//
// TESSERA_NCCL_LIBRARY names the file: libnccl.so.2 is looked for as any library is, and a CUDA LibTorch has brought it
// into the process already. It is not used unasked, as it has not run on a GPU yet. Loaded once in a process and never
// unloaded; any thread.
#pragma once

#include <cstddef>
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

// The functions, without `nccl` before their names. Streams are those of the device: c10::Stream::native_handle().
struct Library {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(CommHandle* comm, int size, UniqueId id, int rank, Config* config);
  Result (*comm_get_async_error)(CommHandle comm, Result* error);
  Result (*comm_finalize)(CommHandle comm);
  Result (*comm_destroy)(CommHandle comm);
  Result (*comm_abort)(CommHandle comm);
  const char* (*get_error_string)(Result result);
  Result (*all_gather)(const void* send, void* receive, size_t send_count, DataType, CommHandle, void* stream);
  Result (*reduce_scatter)(const void* send, void* receive, size_t receive_count, DataType, Reduction, CommHandle,
                           void* stream);
  Result (*all_reduce)(const void* send, void* receive, size_t count, DataType, Reduction, CommHandle, void* stream);
  Result (*broadcast)(const void* send, void* receive, size_t count, DataType, int root, CommHandle, void* stream);
  Result (*send)(const void* buffer, size_t count, DataType, int peer, CommHandle, void* stream);
  Result (*receive)(void* buffer, size_t count, DataType, int peer, CommHandle, void* stream);
  Result (*group_start)();
  Result (*group_end)();
  Result (*red_op_create_pre_mul_sum)(Reduction* reduction, void* scalar, DataType, int residence, CommHandle);
  Result (*red_op_destroy)(Reduction reduction, CommHandle);

  int version = 0;  // 22703: 2.27.3
};

// ncclScalarHostImmediate, of red_op_create_pre_mul_sum
inline constexpr int kScalarOnHost = 1;

// What TESSERA_NCCL_LIBRARY names; nothing where it is not set, or "off".
std::optional<std::string> library_name();

// ErrorKind::kMachine: it cannot be loaded, lacks a function, or is older than 2.14.
Library load_library(const std::string& name);

// That of library_name(), loaded at the first call. Errors: see load_library; each call throws anew.
const Library& library_of_this_process();

}  // namespace tessera::comm::nccl
