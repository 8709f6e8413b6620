// The one file that sees MPI. It links an MPI library and nothing of ours or of LibTorch, and is built once for each
// MPI.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "tessera/comm/mpi/plugin.h"

#include <mpi.h>

#include <bit>
#include <cstdio>
#include <cstring>

namespace tessera::comm::mpi {
namespace {

// OpenMPI's handles are pointers, MPICH's are numbers.
template <class Handle>
uint64_t number_of(Handle handle) {
  static_assert(sizeof(handle) <= sizeof(uint64_t));
  uint64_t number = 0;
  std::memcpy(&number, &handle, sizeof(handle));
  return number;
}

template <class Handle>
Handle handle_of(uint64_t number) {
  Handle handle;
  std::memcpy(&handle, &number, sizeof(handle));
  return handle;
}

int begin(Job* job) {
  *job = {};
  int initialized = 0, finalized = 0, level = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized) {
    job->is_over = true;
    return MPI_SUCCESS;
  }
  if (initialized) {
    MPI_Query_thread(&level);
  } else {
    // Calls come one at a time; but a program's own use of MPI may come beside them.
    if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level)) return code;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    job->is_initialized_here = true;
  }
  job->serves_any_thread = level >= MPI_THREAD_SERIALIZED;
  int* largest_tag = nullptr;
  int has_largest_tag = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &job->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &job->size);
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest_tag), &has_largest_tag);
  constexpr unsigned kLeastTagOfAnyMpi = 32767;
  const unsigned largest = has_largest_tag ? static_cast<unsigned>(*largest_tag) : kLeastTagOfAnyMpi;
  job->tag_bits = std::bit_width(largest + 1) - 1;
  return MPI_SUCCESS;
}

int make_group(const int* ranks, int count, Group* group) {
  MPI_Group everybody, members;
  MPI_Comm communicator;
  int code = MPI_Comm_group(MPI_COMM_WORLD, &everybody);
  if (code) return code;
  code = MPI_Group_incl(everybody, count, ranks, &members);
  MPI_Group_free(&everybody);
  if (code) return code;
  code = MPI_Comm_create_group(MPI_COMM_WORLD, members, /*tag=*/0, &communicator);
  MPI_Group_free(&members);
  if (code) return code;
  *group = number_of(communicator);
  return MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
}

int free_group(Group group) {
  auto communicator = handle_of<MPI_Comm>(group);
  return MPI_Comm_free(&communicator);
}

int is_one_host(Group group, bool* one_host) {
  const auto communicator = handle_of<MPI_Comm>(group);
  MPI_Comm host;
  int size = 0, size_on_host = 0;
  if (const int code = MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host)) return code;
  MPI_Comm_size(communicator, &size);
  MPI_Comm_size(host, &size_on_host);
  *one_host = size == size_on_host;
  return MPI_Comm_free(&host);
}

int start_send(const void* data, int bytes, int to, int tag, Group group, Request* request) {
  MPI_Request handle = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data, bytes, MPI_BYTE, to, tag, handle_of<MPI_Comm>(group), &handle);
  *request = number_of(handle);
  return code;
}

int start_receive(void* data, int bytes, int from, int tag, Group group, Request* request) {
  MPI_Request handle = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, bytes, MPI_BYTE, from, tag, handle_of<MPI_Comm>(group), &handle);
  *request = number_of(handle);
  return code;
}

int test(Request* request, bool* done, int* bytes) {
  auto handle = handle_of<MPI_Request>(*request);
  MPI_Status status;
  int flag = 0;
  const int code = MPI_Test(&handle, &flag, &status);
  *request = number_of(handle);
  *done = flag != 0;
  if (code == MPI_SUCCESS && flag) MPI_Get_count(&status, MPI_BYTE, bytes);
  return code;
}

int cancel(Request* request) {
  auto handle = handle_of<MPI_Request>(*request);
  return MPI_Cancel(&handle);
}

int start_goodbye(Request* request) {
  MPI_Request handle = MPI_REQUEST_NULL;
  const int code = MPI_Ibarrier(MPI_COMM_WORLD, &handle);
  *request = number_of(handle);
  return code;
}

int finalize() { return MPI_Finalize(); }

void explain(int code, char* text, size_t size) {
  char whole[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, whole, &length) != MPI_SUCCESS) std::snprintf(whole, sizeof(whole), "error %d", code);
  std::snprintf(text, size, "%s", whole);
}

constexpr Plugin kPlugin = {kPluginVersion, begin, make_group, free_group,    is_one_host, start_send,
                            start_receive,  test,  cancel,     start_goodbye, finalize,    explain};

}  // namespace
}  // namespace tessera::comm::mpi

extern "C" __attribute__((visibility("default"))) const tessera::comm::mpi::Plugin* tessera_mpi_plugin() {
  return &tessera::comm::mpi::kPlugin;
}
