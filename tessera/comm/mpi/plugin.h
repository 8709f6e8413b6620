// What Tessera uses of MPI, without MPI's own types. OpenMPI and MPICH differ in those, so plugin.cpp is compiled once
// for each into a shared object of its own (libtessera_mpi_openmpi.so, …), of which a process loads the one whose
// mpirun started it (library.h). What is built here therefore runs where there is no MPI, too.
//
// Functions return 0, or an error code of MPI that explain() puts into words; nothing throws. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::comm::mpi {

// Raised with each change of Plugin: a shared object of another build is refused, not called wrongly.
inline constexpr int kPluginVersion = 1;

using Group = uint64_t;    // a communicator of MPI
using Request = uint64_t;  // of one message in flight

// This process among all that one mpirun started.
struct Job {
  int rank;
  int size;
  int tag_bits;              // a tag is at least 0 and has no more bits than this
  bool serves_any_thread;    // one at a time
  bool is_initialized_here;  // nobody else (mpi4py) did it, and so nobody else will finalize MPI
  bool is_over;              // MPI has been finalized: nothing else is valid
};

struct Plugin {
  int version;

  // Initializes MPI unless somebody has. Waits for the other processes without limit.
  int (*begin)(Job* job);

  // A communicator of these ranks of the job, in this order; collective among them, and without limit.
  int (*make_group)(const int* ranks, int count, Group* group);
  int (*free_group)(Group group);

  // Whether all of a group can share memory; collective.
  int (*is_one_host)(Group group, bool* one_host);

  // Messages between two ranks of a group, at most INT_MAX bytes each; those of one tag arrive in order.
  int (*start_send)(const void* data, int bytes, int to, int tag, Group group, Request* request);
  int (*start_receive)(void* data, int bytes, int from, int tag, Group group, Request* request);

  // One poll, which advances everything in flight. A request that is done no longer exists; `bytes` is what has
  // arrived.
  int (*test)(Request* request, bool* done, int* bytes);

  // A receive that nothing has come for yet is done at a later test; any other goes on.
  int (*cancel)(Request* request);

  // Done once every process of the job has started it.
  int (*start_goodbye)(Request* request);
  int (*finalize)();

  void (*explain)(int code, char* text, size_t size);
};

}  // namespace tessera::comm::mpi

extern "C" const tessera::comm::mpi::Plugin* tessera_mpi_plugin();
