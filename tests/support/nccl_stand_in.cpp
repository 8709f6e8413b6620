// A library with NCCL's functions, for tests without a GPU: between processes of one host, on streams of the far device
// (far_stream_handle.h). Built as libnccl.so.2 in a folder of its own. As far as it matters here it behaves as NCCL
// does: a communicator with `blocking = 0` is asked until a call is done, and what a call starts is on its stream only
// then; what is on a stream runs later and in order; sums are added in an order of its own, the last rank's first, in
// the tensors' dtype; ranks that disagree get an error, or wait for ever; an abort ends what runs.
//
// How: every two ranks have a pipe each way in memory that all share, in a file of /dev/shm named by the unique id.
// Each message begins with what it is, so that counts that differ are seen.
//
// Faults, by environment variables of a rank; operations are counted from 1 in its process:
//   STAND_IN_SEED=3        every operation waits up to 3 ms, drawn from the seed
//   STAND_IN_STALL=2       its second operation does nothing until it is aborted
//   STAND_IN_DIE=2         … kills the process (SIGKILL) when peers know of it
//   STAND_IN_ERROR=2       … is reported as a remote error, after 0.1 s
//   STAND_IN_FAIL=ncclAllGather   that function returns a system error
//   STAND_IN_VERSION=21304        what ncclGetVersion says
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/far_stream_handle.h"
#include "tests/support/nccl_stand_in_sums.h"

namespace {

using namespace tessera::test::stand_in;
using tessera::test::FarAccess;
using tessera::test::FarStreamHandle;

enum Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7
};
enum Kind : uint32_t { kMessage = 1, kAllGather, kReduceScatter, kAllReduce, kBroadcast };

struct UniqueId {
  char bytes[128];
};

struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

constexpr int kMostRanks = 8;
constexpr size_t kPipeBytes = 1 << 16;

// From one rank to another. Only the one writes `written`, only the other `read`.
struct Pipe {
  std::atomic<uint64_t> written, read;
  char bytes[kPipeBytes];
};

struct Shared {
  std::atomic<int> arrived;
  Pipe pipes[kMostRanks][kMostRanks];  // [from][to]
};

struct Header {
  uint32_t kind, dtype;
  uint64_t count, number;  // of elements; of the operation in its communicator, 0 for messages
};

long number_of(const char* variable) {
  const char* const text = getenv(variable);
  return text == nullptr ? 0 : atol(text);
}

bool fails(const char* function) {
  const char* const text = getenv("STAND_IN_FAIL");
  return text != nullptr && std::string(text) == function;
}

// One way of an operation with one peer.
struct Transfer {
  int peer;
  bool sends;
  Header header;
  std::vector<char> head{};  // what came of the peer's header, or what is to be sent of this one
  char* data;
  size_t bytes;
  size_t done = 0;  // header and data

  bool is_over() const { return done == sizeof(Header) + bytes; }
};

struct Communicator {
  int rank = 0, size = 0;
  std::string name;
  bool blocks = false;
  Shared* shared = nullptr;
  std::atomic<int> state = kInProgress;  // of the last call
  std::atomic<int> error = kSuccess;     // of what runs
  std::atomic<bool> aborted = false;
  std::atomic<int> running = 0;
  std::atomic<uint64_t> operations = 0;
  std::mutex mutex;
  std::vector<std::function<void()>> launches;  // once somebody has asked often enough
  int asked = 0;
  std::map<int, double> scales;  // of reductions
  int last_reduction = 4;

  ~Communicator() {
    if (shared != nullptr) munmap(shared, sizeof(Shared));
  }

  Pipe& to(int peer) const { return shared->pipes[rank][peer]; }
  Pipe& from(int peer) const { return shared->pipes[peer][rank]; }

  bool ended() const { return aborted || error != kSuccess; }

  void report(int code, const std::string& what) {
    std::fprintf(stderr, "stand-in for NCCL, rank %d of %d: %s\n", rank, size, what.c_str());
    error = code;
  }
};

using CommunicatorPtr = std::shared_ptr<Communicator>;
using CommHandle = CommunicatorPtr*;

void join(const CommunicatorPtr& comm) {
  const int file = shm_open(comm->name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) {
    comm->state = kSystemError;
    return;
  }
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  comm->shared = static_cast<Shared*>(memory);
  ++comm->shared->arrived;
  while (comm->shared->arrived < comm->size && !comm->aborted) usleep(200);
  shm_unlink(comm->name.c_str());
  comm->state = kSuccess;
}

size_t copy_through(Pipe& pipe, char* data, size_t bytes, bool sends) {
  const uint64_t written = pipe.written, read = pipe.read;
  const size_t some = std::min<size_t>(bytes, sends ? kPipeBytes - (written - read) : written - read);
  for (size_t i = 0; i < some; ++i) {
    char& place = pipe.bytes[((sends ? written : read) + i) % kPipeBytes];
    sends ? void(place = data[i]) : void(data[i] = place);
  }
  (sends ? pipe.written : pipe.read) += some;
  return some;
}

// True where something moved.
bool advance(Communicator& comm, Transfer& transfer) {
  Pipe& pipe = transfer.sends ? comm.to(transfer.peer) : comm.from(transfer.peer);
  size_t moved = 0;
  if (transfer.done < sizeof(Header)) {
    transfer.head.resize(sizeof(Header));
    if (transfer.sends) std::memcpy(transfer.head.data(), &transfer.header, sizeof(Header));
    moved = copy_through(pipe, transfer.head.data() + transfer.done, sizeof(Header) - transfer.done, transfer.sends);
    transfer.done += moved;
    if (transfer.done == sizeof(Header) && std::memcmp(transfer.head.data(), &transfer.header, sizeof(Header)) != 0) {
      Header other;
      std::memcpy(&other, transfer.head.data(), sizeof(Header));
      comm.report(kInvalidUsage,
                  "operation " + std::to_string(transfer.header.number) + " of kind " +
                      std::to_string(transfer.header.kind) + " and count " + std::to_string(transfer.header.count) +
                      " meets operation " + std::to_string(other.number) + " of kind " + std::to_string(other.kind) +
                      " and count " + std::to_string(other.count) + " of rank " + std::to_string(transfer.peer));
    }
  }
  if (transfer.done >= sizeof(Header) && !comm.ended()) {
    const size_t at = transfer.done - sizeof(Header);
    const size_t more = copy_through(pipe, transfer.data + at, transfer.bytes - at, transfer.sends);
    transfer.done += more;
    moved += more;
  }
  return moved > 0;
}

void move(Communicator& comm, std::vector<Transfer>& transfers) {
  const auto is_over = [](const Transfer& each) { return each.is_over(); };
  while (!comm.ended() && !std::all_of(transfers.begin(), transfers.end(), is_over)) {
    bool moved = false;
    std::map<std::pair<int, bool>, bool> busy;  // messages of one pair one way go one after the other
    for (Transfer& each : transfers) {
      bool& is_busy = busy[{each.peer, each.sends}];
      if (each.is_over() || is_busy) continue;
      is_busy = true;
      moved |= advance(comm, each);
    }
    if (!moved) usleep(50);
  }
  while (comm.error != kSuccess && !comm.aborted) usleep(200);  // a kernel that is stuck
}

// What a call asked for.
struct Operation {
  Kind kind;
  const char* send = nullptr;
  char* receive = nullptr;
  size_t count = 0;
  DataType dtype = kInt8;
  double scale = 1;
  int peer = 0;  // of a message; the root of a broadcast

  size_t bytes() const { return count * bytes_of(dtype); }
};

class Execution {
 public:
  Execution(CommunicatorPtr comm, FarStreamHandle* stream, std::vector<Operation> operations)
      : comm_(std::move(comm)), stream_(stream), operations_(std::move(operations)), number_(++comm_->operations) {}

  void run() {
    wait_a_little();
    const long number = ++count();
    if (number == number_of("STAND_IN_STALL")) {
      while (!comm_->aborted) usleep(200);
    }
    if (number == number_of("STAND_IN_ERROR")) {
      usleep(100'000);
      comm_->error = kRemoteError;
    }
    for (const Operation& each : operations_) prepare(each);
    if (number == number_of("STAND_IN_DIE")) {
      for (const Transfer& each : transfers_) {
        Header header = each.header;
        if (each.sends) copy_through(comm_->to(each.peer), reinterpret_cast<char*>(&header), sizeof(header), true);
      }
      kill(getpid(), SIGKILL);
    }
    move(*comm_, transfers_);
    if (!comm_->ended()) {
      for (const auto& each : then_) each();
    }
    --comm_->running;
  }

 private:
  static std::atomic<long>& count() {
    static std::atomic<long> so_far = 0;
    return so_far;
  }

  static void wait_a_little() {
    const long seed = number_of("STAND_IN_SEED");
    if (seed == 0) return;
    static std::mutex mutex;
    static std::mt19937 draws(static_cast<uint32_t>(seed * 1000 + getpid() % 1000));
    int microseconds = 0;
    {
      const std::lock_guard lock(mutex);
      microseconds = std::uniform_int_distribution(0, 3000)(draws);
    }
    usleep(static_cast<useconds_t>(microseconds));
  }

  char* near(const void* far) const { return static_cast<char*>(stream_->near_of(far)); }

  void transfer(const Operation& operation, int peer, bool sends, char* data, size_t bytes) {
    const bool is_message = operation.kind == kMessage;
    transfers_.push_back({.peer = peer,
                          .sends = sends,
                          .header = {.kind = operation.kind,
                                     .dtype = static_cast<uint32_t>(operation.dtype),
                                     .count = operation.count,
                                     .number = is_message ? 0 : number_},
                          .data = data,
                          .bytes = bytes});
  }

  void prepare(const Operation& operation) {
    const int size = comm_->size, rank = comm_->rank;
    const size_t bytes = operation.bytes();
    char* const send = operation.send == nullptr ? nullptr : near(operation.send);
    char* const receive = operation.receive == nullptr ? nullptr : near(operation.receive);
    if (operation.kind == kMessage) {
      return transfer(operation, operation.peer, send != nullptr, send != nullptr ? send : receive, bytes);
    }
    if (operation.kind == kBroadcast) {
      if (rank != operation.peer) return transfer(operation, operation.peer, false, receive, bytes);
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) transfer(operation, peer, true, send, bytes);
      }
      if (send != receive) then_.emplace_back([=] { std::memcpy(receive, send, bytes); });
      return;
    }
    const bool in_parts = operation.kind == kReduceScatter;
    std::vector<const char*> parts;
    for (int peer = 0; peer < size; ++peer) {
      char* const theirs = in_parts ? send + static_cast<size_t>(peer) * bytes : send;
      if (operation.kind == kAllGather) {
        char* const place = receive + static_cast<size_t>(peer) * bytes;
        if (peer != rank) transfer(operation, peer, false, place, bytes);
        if (peer == rank && place != send) std::memcpy(place, send, bytes);
      } else if (peer == rank) {
        parts.push_back(theirs);
      } else {
        arrived_.push_back(std::make_unique<std::vector<char>>(bytes));
        parts.push_back(arrived_.back()->data());
        transfer(operation, peer, false, arrived_.back()->data(), bytes);
      }
      if (peer != rank) transfer(operation, peer, true, theirs, bytes);
    }
    if (operation.kind == kAllGather) return;
    then_.emplace_back([=, dtype = operation.dtype, scale = operation.scale, count = operation.count] {
      sum_values(dtype, parts, scale, count, receive);
    });
  }

  CommunicatorPtr comm_;
  FarStreamHandle* stream_;
  std::vector<Operation> operations_;
  uint64_t number_;
  std::vector<Transfer> transfers_;
  std::vector<std::unique_ptr<std::vector<char>>> arrived_;
  std::vector<std::function<void()>> then_;
};

const char* name_of(Kind kind) {
  static constexpr const char* kNames[] = {
      "", "ncclSend or ncclRecv", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast"};
  return kNames[kind];
}

void add_accesses(const Operation& operation, const Communicator& comm, std::vector<FarAccess>& accesses) {
  const bool gathers = operation.kind == kAllGather, scatters = operation.kind == kReduceScatter;
  const size_t bytes = operation.bytes(), all = bytes * static_cast<size_t>(comm.size);
  const bool sends = operation.kind != kBroadcast || comm.rank == operation.peer;
  const bool receives = operation.kind != kBroadcast || !sends || operation.send != operation.receive;
  if (operation.send != nullptr && sends) accesses.push_back({operation.send, scatters ? all : bytes, false});
  if (operation.receive != nullptr && receives) accesses.push_back({operation.receive, gathers ? all : bytes, true});
}

void enqueue(const CommunicatorPtr& comm, FarStreamHandle* stream, std::vector<Operation> operations) {
  std::vector<FarAccess> accesses;
  for (const Operation& each : operations) add_accesses(each, *comm, accesses);
  const char* const name = name_of(operations.front().kind);
  auto* const execution = new Execution(comm, stream, std::move(operations));
  stream->enqueue(stream, {.name = name,
                           .accesses = accesses.data(),
                           .count = accesses.size(),
                           .run =
                               [](void* argument) {
                                 const std::unique_ptr<Execution> own(static_cast<Execution*>(argument));
                                 own->run();
                               },
                           .argument = execution});
}

// What a thread has called since its outermost group began.
struct Group {
  int depth = 0;
  CommunicatorPtr comm;
  FarStreamHandle* stream = nullptr;
  std::vector<Operation> operations;
};
thread_local Group the_group;

Result launch(const CommunicatorPtr& comm, FarStreamHandle* stream, std::vector<Operation> operations) {
  ++comm->running;
  if (comm->blocks) {
    enqueue(comm, stream, std::move(operations));
    return kSuccess;
  }
  const std::lock_guard lock(comm->mutex);
  comm->launches.emplace_back([=] { enqueue(comm, stream, operations); });
  comm->asked = 0;
  comm->state = kInProgress;
  return kInProgress;
}

Result call(const char* function, CommHandle handle, void* stream, const Operation& operation) {
  if (fails(function)) return kSystemError;
  if (handle == nullptr || stream == nullptr) return kInvalidArgument;
  const CommunicatorPtr& comm = *handle;
  if (comm->state != kSuccess) return kInvalidUsage;  // it is still at what it was asked before
  auto* const far_stream = static_cast<FarStreamHandle*>(stream);
  if (the_group.depth == 0) return launch(comm, far_stream, {operation});
  if (the_group.comm && the_group.comm != comm) return kInvalidUsage;  // enough for those who use it
  the_group.comm = comm;
  the_group.stream = far_stream;
  the_group.operations.push_back(operation);
  return kSuccess;
}

double scale_of(CommHandle comm, int reduction) {
  if (comm == nullptr || reduction == 0) return 1;
  const std::lock_guard lock((*comm)->mutex);
  return (*comm)->scales.at(reduction);
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  const long said = number_of("STAND_IN_VERSION");
  *version = said == 0 ? 22703 : static_cast<int>(said);
  return kSuccess;
}

const char* ncclGetErrorString(Result result) {
  switch (result) {
    case kSystemError:
      return "unhandled system error";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "another error";
  }
}

Result ncclGetUniqueId(UniqueId* id) {
  std::random_device random;
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->bytes, sizeof(id->bytes), "/stand_in_for_nccl_%08x%08x", random(), random());
  return kSuccess;
}

Result ncclCommInitRankConfig(CommHandle* handle, int size, UniqueId id, int rank, Config* config) {
  if (fails("ncclCommInitRankConfig")) return kSystemError;
  if (size > kMostRanks || rank < 0 || rank >= size || config == nullptr || config->magic != 0xcafebeef) {
    return kInvalidArgument;
  }
  auto comm = std::make_shared<Communicator>();
  comm->rank = rank;
  comm->size = size;
  comm->name = id.bytes;
  comm->blocks = config->size < sizeof(Config) || config->blocking != 0;
  *handle = new CommunicatorPtr(comm);
  std::thread([comm] { join(comm); }).detach();
  while (comm->blocks && comm->state == kInProgress) usleep(200);
  return static_cast<Result>(comm->state.load());
}

Result ncclCommGetAsyncError(CommHandle handle, Result* state) {
  const CommunicatorPtr& comm = *handle;
  const std::lock_guard lock(comm->mutex);
  constexpr int kOften = 3;
  if (!comm->launches.empty() && ++comm->asked == kOften) {
    for (const auto& each : comm->launches) each();
    comm->launches.clear();
    comm->state = kSuccess;
  }
  *state = static_cast<Result>(comm->error != kSuccess ? comm->error.load() : comm->state.load());
  return kSuccess;
}

Result ncclCommFinalize(CommHandle handle) {
  return fails("ncclCommFinalize") ? kSystemError : (*handle)->running > 0 ? kInvalidUsage : kSuccess;
}

Result ncclCommDestroy(CommHandle handle) {
  delete handle;
  return kSuccess;
}

Result ncclCommAbort(CommHandle handle) {
  const CommunicatorPtr comm = *handle;
  comm->aborted = true;
  {
    const std::lock_guard lock(comm->mutex);
    comm->running -= static_cast<int>(comm->launches.size());
    comm->launches.clear();
  }
  shm_unlink(comm->name.c_str());
  while (comm->running > 0) usleep(200);
  delete handle;
  return kSuccess;
}

Result ncclGroupStart() {
  ++the_group.depth;
  return kSuccess;
}

Result ncclGroupEnd() {
  if (fails("ncclGroupEnd")) return kSystemError;
  if (--the_group.depth > 0 || !the_group.comm) return kSuccess;
  const Group group = std::exchange(the_group, Group{});
  return launch(group.comm, group.stream, group.operations);
}

Result ncclAllGather(const void* send, void* receive, size_t count, DataType dtype, CommHandle comm, void* stream) {
  return call("ncclAllGather", comm, stream,
              {.kind = kAllGather,
               .send = static_cast<const char*>(send),
               .receive = static_cast<char*>(receive),
               .count = count,
               .dtype = dtype});
}

Result ncclReduceScatter(const void* send, void* receive, size_t count, DataType dtype, int reduction, CommHandle comm,
                         void* stream) {
  return call("ncclReduceScatter", comm, stream,
              {.kind = kReduceScatter,
               .send = static_cast<const char*>(send),
               .receive = static_cast<char*>(receive),
               .count = count,
               .dtype = dtype,
               .scale = scale_of(comm, reduction)});
}

Result ncclAllReduce(const void* send, void* receive, size_t count, DataType dtype, int reduction, CommHandle comm,
                     void* stream) {
  return call("ncclAllReduce", comm, stream,
              {.kind = kAllReduce,
               .send = static_cast<const char*>(send),
               .receive = static_cast<char*>(receive),
               .count = count,
               .dtype = dtype,
               .scale = scale_of(comm, reduction)});
}

Result ncclBroadcast(const void* send, void* receive, size_t count, DataType dtype, int root, CommHandle comm,
                     void* stream) {
  return call("ncclBroadcast", comm, stream,
              {.kind = kBroadcast,
               .send = static_cast<const char*>(send),
               .receive = static_cast<char*>(receive),
               .count = count,
               .dtype = dtype,
               .peer = root});
}

Result ncclSend(const void* buffer, size_t count, DataType dtype, int peer, CommHandle comm, void* stream) {
  return call(
      "ncclSend", comm, stream,
      {.kind = kMessage, .send = static_cast<const char*>(buffer), .count = count, .dtype = dtype, .peer = peer});
}

Result ncclRecv(void* buffer, size_t count, DataType dtype, int peer, CommHandle comm, void* stream) {
  return call("ncclRecv", comm, stream,
              {.kind = kMessage, .receive = static_cast<char*>(buffer), .count = count, .dtype = dtype, .peer = peer});
}

Result ncclRedOpCreatePreMulSum(int* reduction, void* scalar, DataType dtype, int residence, CommHandle handle) {
  if (residence != 1) return kInvalidArgument;  // a scalar of the host's is meant at once
  const std::lock_guard lock((*handle)->mutex);
  *reduction = ++(*handle)->last_reduction;
  (*handle)->scales[*reduction] = value_of(scalar, dtype);
  return kSuccess;
}

Result ncclRedOpDestroy(int reduction, CommHandle handle) {
  const std::lock_guard lock((*handle)->mutex);
  return (*handle)->scales.erase(reduction) == 1 ? kSuccess : kInvalidArgument;
}
}
