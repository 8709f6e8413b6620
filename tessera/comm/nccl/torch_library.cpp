#include "tessera/comm/nccl/torch_library.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::comm::nccl {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr Result kSystemError{2};  // ncclSystemError

// Not one of NCCL's own reductions: the sum, multiplied by the communicator's scale.
constexpr Reduction kScaledSum = 100;

// What a communicator's handle points to. It connects in a thread, so that whoever waits for it can give up.
struct Member {
  c10::intrusive_ptr<c10d::Backend> group;
  int64_t size;
  at::Device device;
  double scale = 1;  // of the scaled sum, of which there is one at a time

  std::string why = {};  // it did not connect; before `connected` says so
  std::atomic<Result> connected = Result::kInProgress;
};

Member& member_of(CommHandle handle) { return *reinterpret_cast<Member*>(handle); }

// Of this thread: what the last call that failed said, and whose calls are taken for one operation.
thread_local std::string the_error;
thread_local bool collects = false;
thread_local c10d::Backend* collecting = nullptr;

template <class Call>
Result attempt(const Call& call) {
  try {
    call();
    return Result::kSuccess;
  } catch (const c10::Error& error) {
    the_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    the_error = error.what();
  }
  the_error = the_error.substr(0, the_error.find('\n'));
  return kSystemError;
}

// Does not return until every member has come, or the group is aborted.
void connect(Member& member) {
  const Result result = attempt([&] {
    c10::impl::VirtualGuardImpl(member.device.type()).setDevice(member.device);
    member.group->eagerConnectSingleDevice(member.device);
  });
  member.why = the_error;
  member.connected = result;
}

// The stream waits, not the host. There is no work where a call was taken into an operation, or had nothing to do.
void queue(const WorkPtr& work) {
  if (work) work->wait();
}

at::ScalarType scalar_type_of(DataType type) {
  switch (type) {
    case DataType::kInt8:
      return at::kChar;
    case DataType::kFloat16:
      return at::kHalf;
    case DataType::kBfloat16:
      return at::kBFloat16;
    case DataType::kFloat64:
      return at::kDouble;
    case DataType::kFloat32:
      break;
  }
  return at::kFloat;
}

// Holds no memory: whoever starts a collective does.
at::Tensor tensor_at(const void* data, size_t count, DataType type, const Member& member) {
  return at::for_blob(const_cast<void*>(data), {static_cast<int64_t>(count)})
      .options(at::TensorOptions(member.device).dtype(scalar_type_of(type)))
      .target_device(member.device)
      .make_tensor();
}

c10d::ReduceOp reduction_of(Reduction reduction, const Member& member) {
  if (reduction != kScaledSum) return c10d::ReduceOp::SUM;
  c10d::ReduceOp scaled;  // as every release that is supported makes it, though under other names
  scaled.op_ = c10d::ReduceOp::PREMUL_SUM;
  scaled.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(member.scale);
  return scaled;
}

Result all_gather(const void* send, void* receive, size_t send_count, DataType type, CommHandle handle, void*) {
  return attempt([&] {
    const Member& member = member_of(handle);
    at::Tensor full = tensor_at(receive, send_count * static_cast<size_t>(member.size), type, member);
    at::Tensor shard = tensor_at(send, send_count, type, member);
    queue(member.group->_allgather_base(full, shard));
  });
}

Result reduce_scatter(const void* send, void* receive, size_t receive_count, DataType type, Reduction reduction,
                      CommHandle handle, void*) {
  return attempt([&] {
    const Member& member = member_of(handle);
    at::Tensor full = tensor_at(send, receive_count * static_cast<size_t>(member.size), type, member);
    at::Tensor shard = tensor_at(receive, receive_count, type, member);
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduction_of(reduction, member);
    queue(member.group->_reduce_scatter_base(shard, full, options));
  });
}

Result all_reduce(const void* send, void* receive, size_t count, DataType type, Reduction reduction, CommHandle handle,
                  void*) {
  TESSERA_INVARIANT(send == receive);
  return attempt([&] {
    const Member& member = member_of(handle);
    std::vector<at::Tensor> buffer{tensor_at(receive, count, type, member)};
    c10d::AllreduceOptions options;
    options.reduceOp = reduction_of(reduction, member);
    queue(member.group->allreduce(buffer, options));
  });
}

Result broadcast(const void* send, void* receive, size_t count, DataType type, int root, CommHandle handle, void*) {
  TESSERA_INVARIANT(send == receive);
  return attempt([&] {
    const Member& member = member_of(handle);
    std::vector<at::Tensor> buffer{tensor_at(receive, count, type, member)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    queue(member.group->broadcast(buffer, options));
  });
}

// To a peer, or from one: always within group_start() and group_end(), because a message of torch's outside has a
// communicator of its own.
template <class Message>
Result message(const void* data, size_t count, DataType type, CommHandle handle, const Message& message_of) {
  TESSERA_INVARIANT(collects);
  return attempt([&] {
    const Member& member = member_of(handle);
    if (collecting == nullptr) {
      member.group->startCoalescing();
      collecting = member.group.get();
    }
    std::vector<at::Tensor> buffer{tensor_at(data, count, type, member)};
    message_of(*member.group, buffer);
  });
}

Result send(const void* buffer, size_t count, DataType type, int peer, CommHandle handle, void*) {
  return message(buffer, count, type, handle, [&](auto& group, auto& tensors) { group.send(tensors, peer, 0); });
}

Result receive(void* buffer, size_t count, DataType type, int peer, CommHandle handle, void*) {
  return message(buffer, count, type, handle, [&](auto& group, auto& tensors) { group.recv(tensors, peer, 0); });
}

Result group_start() {
  collects = true;
  return Result::kSuccess;
}

Result group_end() {
  collects = false;
  c10d::Backend* const group = std::exchange(collecting, nullptr);
  if (group == nullptr) return Result::kSuccess;
  return attempt([&] { queue(group->endCoalescing()); });
}

// Where communicators meet, is all that an id says here.
Result get_unique_id(UniqueId* id) {
  return attempt([&] {
    std::random_device random;
    const std::string text = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
    *id = {};
    std::copy(text.begin(), text.end(), id->bytes);
  });
}

Result comm_get_async_error(CommHandle handle, Result* error) {
  const Member& member = member_of(handle);
  *error = member.connected;
  if (*error != Result::kSuccess) {
    if (*error != Result::kInProgress) the_error = member.why;
    return Result::kSuccess;
  }
  return attempt([&] {
    const bool is_well = member_of(handle).group->getError() == c10d::ErrorType::SUCCESS;
    if (!is_well) the_error = "torch's NCCL group has met an error, which its own log says";
    *error = is_well ? Result::kSuccess : Result::kRemoteError;
  });
}

Result comm_destroy(CommHandle handle) {
  const std::unique_ptr<Member> member(&member_of(handle));
  return attempt([&] { member->group->shutdown(); });
}

// The member stays, as a call that this ends may still use it.
Result comm_abort(CommHandle handle) {
  return attempt([&] { member_of(handle).group->abort(); });
}

}  // namespace

Library library_of_torch(c10::intrusive_ptr<c10d::Backend> group, at::Device device,
                         c10::intrusive_ptr<c10d::Store> store) {
  Library library;
  library.name = "torch's own NCCL group";
  library.aborts_beside_calls = true;
  library.get_unique_id = get_unique_id;
  library.comm_init_rank_config = [group = std::move(group), device, store = std::move(store)](
                                      CommHandle* handle, int size, const UniqueId& id, int rank, Config*) {
    return attempt([&] {
      const auto place = c10::make_intrusive<c10d::PrefixStore>(fmt::format("nccl of torch/{}", id.bytes), store);
      auto* const member = new Member{
          .group = group->merge(place, group->getBackendOptions(), rank, size), .size = size, .device = device};
      *handle = reinterpret_cast<CommHandle>(member);
      std::thread([member] { connect(*member); }).detach();
    });
  };
  library.comm_get_async_error = comm_get_async_error;
  library.comm_finalize = [](CommHandle) { return Result::kSuccess; };
  library.comm_destroy = comm_destroy;
  library.comm_abort = comm_abort;
  library.get_error_string = [](Result) { return the_error.c_str(); };
  library.all_gather = all_gather;
  library.reduce_scatter = reduce_scatter;
  library.all_reduce = all_reduce;
  library.broadcast = broadcast;
  library.send = send;
  library.receive = receive;
  library.group_start = group_start;
  library.group_end = group_end;
  library.red_op_create_pre_mul_sum = [](Reduction* reduction, void* scalar, DataType type, int, CommHandle handle) {
    member_of(handle).scale = at::from_blob(scalar, {}, scalar_type_of(type)).item<double>();
    *reduction = kScaledSum;
    return Result::kSuccess;
  };
  library.red_op_destroy = [](Reduction, CommHandle) { return Result::kSuccess; };
  return library;
}

}  // namespace tessera::comm::nccl
