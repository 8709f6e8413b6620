// A device for tests of what a GPU would do: LibTorch's operators work on it, and nothing else may. Its tensors'
// addresses are readable by nobody, so code of ours that follows one dies of SIGSEGV, as on a device with memory of its
// own; an operator whose tensors are on two devices is an error, as there. Backward runs on a thread of its own, as
// there.
//
// The operators are the CPU's, on a second mapping of the same memory. Unless it is late (below), each runs at once,
// after what is queued on the current stream (far_stream.h).
//
// Late: an operator is put on the current stream and runs later, on the stream's thread, as on a GPU; what has to know
// a value (item, nonzero, equal, a copy to memory that is not pinned or that blocks) waits for the stream, which is
// counted. What results look like is known at once, from a run on zeros. Random operators run when they are called, so
// that their numbers come in the host's order. A copy with `non_blocking` between the device and pinned memory
// (Tensor::pin_memory) reads and writes that memory late.
//
// Memory belongs to the stream on which it was allocated: freed, it is overwritten with 0xff in that stream's order,
// and given out again on that stream at once; for others once all has been waited for. Tensor::record_stream (through
// recordDataPtrOnStream) keeps it until the other stream has come so far. An operator on a stream holds no memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::test {

struct FarMode {
  bool late = false;
  uint64_t seed = 0;      // of the waits before operators; 0: none
  bool records = false;   // far_recorder.h
  int64_t drop_wait = 0;  // the n-th wait of a stream for an event is left out, counted from 1 since the mode was set
  int64_t drop_record = 0;
};

struct FarWait {
  int64_t number;          // from 1 since the mode was set
  int64_t waiting, after;  // streams
};

// Since the mode was set, but for the pinned memory, which is the process's.
struct FarFacts {
  int64_t host_waits = 0;          // of the host for an event or a stream: by name, or for an operator's value
  int64_t waits = 0, records = 0;  // of a stream for an event; of an event
  std::vector<FarWait> new_waits;  // that ordered what was not ordered yet
  std::vector<std::string> races;  // sentences of the recorder
  size_t pinned_bytes = 0, most_pinned_bytes = 0;  // now; at once
  int64_t pinned_allocations = 0;
};

// Before anything else of a process runs a backward: LibTorch counts its devices then. Its mode is then what the
// environment says: TESSERA_FAR_LATE=<seed>, TESSERA_FAR_RECORDS=1, TESSERA_FAR_DROP_WAIT=<n>,
// TESSERA_FAR_DROP_RECORD=<n>. A process that ends by exit() with races prints them and exits with 66.
at::Device far_device();

// Waits for all streams first, which is not counted. Children of a fork keep the mode.
void set_far_mode(const FarMode& mode);
FarMode far_mode_of_environment();

// Waits for nothing.
FarFacts far_facts();

size_t far_bytes_in_use();
size_t far_pinned_bytes();  // of the host, for it

}  // namespace tessera::test
