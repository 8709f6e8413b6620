#include "tests/comm/far_torch_group.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/current_stream.h"
#include "tessera/comm/nccl/library.h"
#include "tests/support/far_device.h"

namespace tessera::test {
namespace {

using comm::current_stream;
using comm::nccl::CommHandle;
using comm::nccl::DataType;
using comm::nccl::Library;
using comm::nccl::Result;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

DataType type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kChar:
      return DataType::kInt8;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kBFloat16:
      return DataType::kBfloat16;
    default:
      TORCH_CHECK(tensor.scalar_type() == at::kFloat);
      return DataType::kFloat32;
  }
}

class FarWork final : public c10d::Work {
 public:
  explicit FarWork(const c10::Stream& stream) : ended_(stream.device_type()) { ended_.record(stream); }
  bool isCompleted() override { return ended_.query(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    ended_.block(current_stream(far_device()));
    return true;
  }

 private:
  c10::Event ended_;
};

class FarTorchGroup final : public c10d::Backend {
 public:
  FarTorchGroup(int rank, int size, std::shared_ptr<const Library> library, c10::intrusive_ptr<Options> options,
                c10::intrusive_ptr<c10d::Store> store)
      : Backend(rank, size), library_(std::move(library)), options_(std::move(options)), store_(std::move(store)) {}

  ~FarTorchGroup() override { abort(); }

  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }

  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& options, const int& rank,
                                    const int& size) override {
    TORCH_CHECK(options == options_, "a group that is merged keeps the settings of the program's");
    return c10::make_intrusive<FarTorchGroup>(rank, size, library_, options, store->clone());
  }

  // Does not return until every rank has come, as torch's does not.
  void eagerConnectSingleDevice(at::Device device) override {
    TORCH_CHECK(device == far_device());
    comm::nccl::UniqueId id{};
    if (rank_ == 0) {
      check(library_->get_unique_id(&id));
      store_->set("id", std::vector<uint8_t>(id.bytes, id.bytes + sizeof(id.bytes)));
    } else {
      const std::vector<uint8_t> told = store_->get("id");
      TORCH_CHECK(told.size() == sizeof(id.bytes));
      std::memcpy(id.bytes, told.data(), told.size());
    }
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device, /*priority=*/0);
    comm::nccl::Config config;
    {
      const std::lock_guard lock(mutex_);
      TORCH_CHECK(!is_aborted_, "the group was aborted");
      check(library_->comm_init_rank_config(&comm_, size_, id, rank_, &config));
    }
    settle();
  }

  WorkPtr _allgather_base(at::Tensor& full, at::Tensor& shard, const c10d::AllgatherOptions&) override {
    return run([&](void* stream) {
      return library_->all_gather(shard.data_ptr(), full.data_ptr(), count_of(shard), type_of(shard), comm_, stream);
    });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& shard, at::Tensor& full,
                               const c10d::ReduceScatterOptions& options) override {
    return summed(options.reduceOp, full, [&](comm::nccl::Reduction sum, void* stream) {
      return library_->reduce_scatter(full.data_ptr(), shard.data_ptr(), count_of(shard), type_of(full), sum, comm_,
                                      stream);
    });
  }

  WorkPtr allreduce(std::vector<at::Tensor>& buffers, const c10d::AllreduceOptions& options) override {
    const at::Tensor& buffer = buffers.at(0);
    return summed(options.reduceOp, buffer, [&](comm::nccl::Reduction sum, void* stream) {
      void* const data = buffer.data_ptr();
      return library_->all_reduce(data, data, count_of(buffer), type_of(buffer), sum, comm_, stream);
    });
  }

  WorkPtr broadcast(std::vector<at::Tensor>& buffers, const c10d::BroadcastOptions& options) override {
    const at::Tensor& buffer = buffers.at(0);
    return run([&](void* stream) {
      return library_->broadcast(buffer.data_ptr(), buffer.data_ptr(), count_of(buffer), type_of(buffer),
                                 static_cast<int>(options.rootRank), comm_, stream);
    });
  }

  void startCoalescing() override {
    begin();
    check(library_->group_start());
    coalesces_ = true;
  }

  WorkPtr send(std::vector<at::Tensor>& buffers, int to, int /*tag*/) override {
    TORCH_CHECK(coalesces_);
    const at::Tensor& buffer = buffers.at(0);
    check(library_->send(buffer.data_ptr(), count_of(buffer), type_of(buffer), to, comm_, stream_->native_handle()));
    return nullptr;
  }

  WorkPtr recv(std::vector<at::Tensor>& buffers, int from, int /*tag*/) override {
    TORCH_CHECK(coalesces_);
    const at::Tensor& buffer = buffers.at(0);
    check(
        library_->receive(buffer.data_ptr(), count_of(buffer), type_of(buffer), from, comm_, stream_->native_handle()));
    return nullptr;
  }

  WorkPtr endCoalescing() override {
    TORCH_CHECK(std::exchange(coalesces_, false));
    check(library_->group_end());
    settle();
    return c10::make_intrusive<FarWork>(*stream_);
  }

  c10d::ErrorType getError() override {
    Result error = Result::kSuccess;
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return c10d::ErrorType::COMM_ERROR;
    const Result asked = library_->comm_get_async_error(comm_, &error);
    return goes_well(asked) && goes_well(error) ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    if (CommHandle const comm = std::exchange(comm_, nullptr)) library_->comm_abort(comm);
  }

  void shutdown() override {
    if (comm_ == nullptr) return;
    check(library_->comm_finalize(comm_));
    settle();
    library_->comm_destroy(std::exchange(comm_, nullptr));
  }

 private:
  static bool goes_well(Result result) { return result == Result::kSuccess || result == Result::kInProgress; }
  static size_t count_of(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

  void check(Result result) const {
    TORCH_CHECK(goes_well(result), "NCCL error in the far device's group: ", library_->get_error_string(result));
  }

  // Has no end of its own: abort() from another thread is one.
  void settle() {
    Result state = Result::kInProgress;
    while (state == Result::kInProgress) {
      {
        const std::lock_guard lock(mutex_);
        TORCH_CHECK(comm_ != nullptr, "the group was aborted");
        check(library_->comm_get_async_error(comm_, &state));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    check(state);
  }

  // The group's stream goes on after the caller's.
  void begin() {
    c10::Event ready(far_device().type());
    ready.record(current_stream(far_device()));
    ready.block(*stream_);
  }

  template <class Call>
  WorkPtr run(const Call& call) {
    begin();
    check(call(stream_->native_handle()));
    settle();
    return c10::make_intrusive<FarWork>(*stream_);
  }

  template <class Call>
  WorkPtr summed(const c10d::ReduceOp& op, const at::Tensor& full, const Call& call) {
    if (op == c10d::ReduceOp::SUM) return run([&](void* stream) { return call(comm::nccl::kSum, stream); });
    TORCH_CHECK(op == c10d::ReduceOp::PREMUL_SUM);
    const auto* const factor = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    const at::Tensor scalar = at::full({}, factor->double_factor, full.scalar_type());
    comm::nccl::Reduction sum = comm::nccl::kSum;
    check(
        library_->red_op_create_pre_mul_sum(&sum, scalar.data_ptr(), type_of(full), comm::nccl::kScalarOnHost, comm_));
    auto work = run([&](void* stream) { return call(sum, stream); });
    check(library_->red_op_destroy(sum, comm_));
    return work;
  }

  std::shared_ptr<const Library> library_;
  c10::intrusive_ptr<Options> options_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::optional<c10::Stream> stream_;
  std::mutex mutex_;  // of `comm_`, against abort()
  CommHandle comm_ = nullptr;
  bool is_aborted_ = false;
  bool coalesces_ = false;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> far_torch_group(int rank, int size, const std::string& library) {
  return c10::make_intrusive<FarTorchGroup>(rank, size,
                                            std::make_shared<const Library>(comm::nccl::load_library(library)),
                                            c10::make_intrusive<c10d::Backend::Options>("nccl"), nullptr);
}

}  // namespace tessera::test
