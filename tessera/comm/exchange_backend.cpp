#include "tessera/comm/exchange_backend.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "tessera/base/hash.h"
#include "tessera/comm/ordered_sum.h"

namespace tessera::comm {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;
using Deadline = Exchange::TimePoint;

// What is left to do once the start functions of an exchange have been called.
using Rest = std::function<void(Deadline)>;

// In flight until somebody has run its rest.
class ExchangeWork final : public c10d::Work {
 public:
  // Gives the work to the backend's thread.
  using HandOver = std::function<void(c10::intrusive_ptr<ExchangeWork>)>;

  ExchangeWork(int rank, OpType type, Tensors outputs, Rest rest, milliseconds timeout, HandOver hand_over)
      : Work(rank, type),
        outputs_(std::move(outputs)),
        rest_(std::move(rest)),
        timeout_(timeout),
        hand_over_(std::move(hand_over)) {}

  bool wait(milliseconds timeout) override {
    run(timeout.count() > 0 ? timeout : timeout_);
    const std::lock_guard lock(mutex_);
    if (exception_) std::rethrow_exception(exception_);
    return true;
  }

  bool isCompleted() override {
    if (!is_over_) give_to_thread();
    return is_over_;
  }

  bool isSuccess() const override {
    const std::lock_guard lock(mutex_);
    return completed_ && !exception_;
  }

  std::vector<at::Tensor> result() override { return outputs_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      const std::lock_guard lock(future_mutex_);
      if (!future_) future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      future = future_;
    }
    if (is_over_) {
      settle_future();
    } else {
      give_to_thread();
    }
    return future;
  }

  void run(milliseconds timeout) {
    {
      const std::lock_guard lock(run_mutex_);
      if (is_over_) return;
      std::exception_ptr failure;
      try {
        rest_(steady_clock::now() + timeout);
      } catch (const PeerFailure& error) {
        failure = std::make_exception_ptr(std::runtime_error(
            fmt::format("rank {}: rank {} {} during {}: {}", rank_, error.peer(),
                        error.late() ? "timed out" : "went away", c10d::opTypeToString(opType_), error.what())));
      } catch (...) {
        failure = std::current_exception();
      }
      rest_ = nullptr;
      finish(failure);
      is_over_ = true;
    }
    settle_future();
  }

  milliseconds timeout() const { return timeout_; }

 private:
  void give_to_thread() {
    if (!given_.exchange(true)) hand_over_(c10::intrusive_ptr<ExchangeWork>::unsafe_reclaim_from_nonowning(this));
  }

  // Outside all locks, because callbacks run in here.
  void settle_future() {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      const std::lock_guard lock(future_mutex_);
      if (!future_ || settled_) return;
      settled_ = true;
      future = future_;
    }
    const auto failure = exception();
    if (failure) {
      future->setError(failure);
    } else {
      future->markCompleted(c10::IValue(outputs_));
    }
  }

  Tensors outputs_;
  Rest rest_;
  milliseconds timeout_;
  HandOver hand_over_;
  std::mutex run_mutex_;
  std::atomic<bool> is_over_ = false;
  std::atomic<bool> given_ = false;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool settled_ = false;
};

// Runs works in the order in which they are handed over. Starts with the first.
class Runner {
 public:
  ~Runner() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void add(c10::intrusive_ptr<ExchangeWork> work) {
    {
      const std::lock_guard lock(mutex_);
      if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
      works_.push_back(std::move(work));
    }
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !works_.empty(); });
      if (stopping_) return;
      const auto work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      work->run(work->timeout());
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<ExchangeWork>> works_;
  bool stopping_ = false;
  std::thread thread_;
};

bool is_ordered_sum(const ReduceOp& op, const at::Tensor& tensor) {
  return (op == ReduceOp::SUM || op == ReduceOp::AVG) && at::isFloatingType(tensor.scalar_type());
}

at::Tensor& combine(const ReduceOp& op, at::Tensor& left, const at::Tensor& right) {
  switch (op.op_) {
    case ReduceOp::SUM:
    case ReduceOp::AVG:
      return left.scalar_type() == at::kBool ? left.logical_or_(right) : left.add_(right);
    case ReduceOp::PRODUCT:
      return left.scalar_type() == at::kBool ? left.logical_and_(right) : left.mul_(right);
    case ReduceOp::MIN:
      return at::minimum_out(left, left, right);
    case ReduceOp::MAX:
      return at::maximum_out(left, left, right);
    case ReduceOp::BAND:
      return left.bitwise_and_(right);
    case ReduceOp::BOR:
      return left.bitwise_or_(right);
    case ReduceOp::BXOR:
      return left.bitwise_xor_(right);
    default:
      TORCH_CHECK(false, "Tessera does not support this reduction: use SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR");
  }
}

// out = the parts (each of its numel), reduced in their order.
void reduce_parts(const ReduceOp& op, const Tensors& parts, at::Tensor out) {
  if (is_ordered_sum(op, out)) {
    return ordered_sum(parts, op == ReduceOp::AVG ? 1.0 / static_cast<double>(parts.size()) : 1, out);
  }
  at::Tensor sum = parts.front().clone();
  for (size_t part = 1; part < parts.size(); ++part) combine(op, sum, parts[part]);
  if (op == ReduceOp::AVG) sum = at::div(sum, static_cast<int64_t>(parts.size()), "trunc");
  out.copy_(sum);
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.contiguous().view({-1}); }

const at::Tensor& single(const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, "this backend takes one tensor per call, not ", tensors.size());
  TORCH_CHECK(tensors[0].device().is_cpu() && !tensors[0].is_sparse(),
              "this backend moves dense CPU tensors only; got one on ", tensors[0].device());
  return tensors[0];
}

const Tensors& single(const std::vector<Tensors>& lists) {
  TORCH_CHECK(lists.size() == 1, "this backend takes one list of tensors per call, not ", lists.size());
  return lists[0];
}

class ExchangeBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  ExchangeBackend(std::string name, std::shared_ptr<Exchange> exchange, int rank, int size, milliseconds timeout)
      : Backend(rank, size), name_(std::move(name)), exchange_(std::move(exchange)), timeout_(timeout) {}

  const std::string getBackendName() const override { return name_; }
  void setTimeout(milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_number_; }

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override { return exchange_->empty(size, options); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor tensor = single(tensors);
    const at::Tensor buffer = flat(tensor);
    std::shared_ptr<Exchange::Pending> pending = exchange_->broadcast(buffer, options.rootRank, next_tag());
    return work(OpType::BROADCAST, {tensor}, options.timeout, [pending, tensor, buffer](Deadline deadline) {
      pending->wait(deadline);
      take_back(tensor, buffer);
    });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor tensor = single(tensors);
    return work(OpType::ALLREDUCE, {tensor}, options.timeout, start_all_reduce(tensor, options.reduceOp));
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    std::vector<Rest> rests;
    for (const at::Tensor& tensor : tensors) rests.push_back(start_all_reduce(tensor, options.reduceOp));
    return work(OpType::ALLREDUCE_COALESCED, tensors, options.timeout, in_turn(std::move(rests)));
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const at::Tensor tensor = single(tensors);
    const at::Tensor own = flat(tensor);
    const bool is_root = getRank() == options.rootRank;
    Tensors incoming = nothing_for_each(own), outgoing = nothing_for_each(own);
    if (!is_root) outgoing[options.rootRank] = own;
    if (is_root) {
      for (int rank = 0; rank < getSize(); ++rank) incoming[rank] = rank == getRank() ? own : at::empty_like(own);
    }
    std::shared_ptr<Exchange::Pending> pending = exchange_->all_to_all(incoming, outgoing, next_tag());
    return work(OpType::REDUCE, {tensor}, options.timeout,
                [pending, tensor, incoming, is_root, op = options.reduceOp](Deadline deadline) {
                  pending->wait(deadline);
                  if (is_root) reduce_parts(op, views_like(tensor, incoming), tensor);
                });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const Tensors& gathered = single(outputs);
    const at::Tensor own = flat(single(inputs));
    return exchange_lists(OpType::ALLGATHER, gathered, Tensors(getSize(), own), options.timeout);
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return work(OpType::_ALLGATHER_BASE, {output}, options.timeout, start_all_gather(output, input));
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    std::vector<Rest> rests;
    for (size_t index = 0; index < outputs.size(); ++index) {
      rests.push_back(start_all_gather(outputs[index], inputs[index]));
    }
    return work(OpType::COALESCED, outputs, options.timeout, in_turn(std::move(rests)));
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    const at::Tensor own = flat(single(inputs));
    Tensors outgoing = nothing_for_each(own);
    outgoing[options.rootRank] = own;
    const bool is_root = getRank() == options.rootRank;
    return exchange_lists(OpType::GATHER, is_root ? single(outputs) : Tensors(), outgoing, options.timeout);
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    const at::Tensor output = single(outputs);
    Tensors incoming = nothing_for_each(output), outgoing = nothing_for_each(output);
    if (getRank() == options.rootRank) outgoing = single(inputs);
    incoming[options.rootRank] = output;
    return exchange_lists(OpType::SCATTER, incoming, outgoing, options.timeout);
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    const at::Tensor output = single(outputs);
    const Tensors& parts = single(inputs);
    Tensors incoming, outgoing;
    for (int rank = 0; rank < getSize(); ++rank) {
      outgoing.push_back(flat(parts[rank]));
      incoming.push_back(rank == getRank() ? outgoing.back() : at::empty({output.numel()}, output.options()));
    }
    std::shared_ptr<Exchange::Pending> pending = exchange_->all_to_all(incoming, outgoing, next_tag());
    return work(OpType::REDUCE_SCATTER, {output}, options.timeout,
                [pending, output, incoming, op = options.reduceOp](Deadline deadline) {
                  pending->wait(deadline);
                  reduce_parts(op, views_like(output, incoming), output);
                });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return work(OpType::_REDUCE_SCATTER_BASE, {output}, options.timeout,
                start_reduce_scatter(output, input, options.reduceOp));
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    std::vector<Rest> rests;
    for (size_t index = 0; index < outputs.size(); ++index) {
      rests.push_back(start_reduce_scatter(outputs[index], inputs[index], options.reduceOp));
    }
    return work(OpType::COALESCED, outputs, options.timeout, in_turn(std::move(rests)));
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return exchange_lists(OpType::ALLTOALL_BASE, split(output, output_splits), split(input, input_splits),
                          options.timeout);
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return exchange_lists(OpType::ALLTOALL, outputs, inputs, options.timeout);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    std::shared_ptr<Exchange::Pending> pending = exchange_->send(flat(single(tensors)), to, message_tag(tag));
    return work(OpType::SEND, {}, c10d::kUnsetTimeout, [pending](Deadline deadline) { pending->wait(deadline); });
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    const at::Tensor tensor = single(tensors);
    const at::Tensor buffer = flat(tensor);
    std::shared_ptr<Exchange::Pending> pending = exchange_->receive(buffer, from, message_tag(tag));
    return work(OpType::RECV, {tensor}, c10d::kUnsetTimeout, [pending, tensor, buffer](Deadline deadline) {
      pending->wait(deadline);
      take_back(tensor, buffer);
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    const at::Tensor all = at::zeros({getSize()}, at::kByte);
    return work(OpType::BARRIER, {}, options.timeout, start_all_gather(all, at::zeros({1}, at::kByte)));
  }

 private:
  uint64_t next_tag() { return fnv1a(fmt::format("c10d/{}", sequence_number_++)); }
  static uint64_t message_tag(int tag) { return fnv1a(fmt::format("c10d/message/{}", tag)); }

  WorkPtr work(OpType type, Tensors outputs, milliseconds timeout, Rest rest) {
    return c10::make_intrusive<ExchangeWork>(getRank(), type, std::move(outputs), std::move(rest),
                                             timeout.count() > 0 ? timeout : timeout_,
                                             [runner = std::weak_ptr(runner_)](c10::intrusive_ptr<ExchangeWork> work) {
                                               if (const auto alive = runner.lock()) alive->add(std::move(work));
                                             });
  }

  static Rest in_turn(std::vector<Rest> rests) {
    return [rests = std::move(rests)](Deadline deadline) {
      for (const Rest& rest : rests) rest(deadline);
    };
  }

  // Where a tensor is not contiguous, what moves is a copy of it.
  static void take_back(const at::Tensor& tensor, const at::Tensor& buffer) {
    if (tensor.data_ptr() != buffer.data_ptr()) tensor.copy_(buffer.view(tensor.sizes()));
  }

  static Tensors views_like(const at::Tensor& tensor, const Tensors& buffers) {
    Tensors views;
    for (const at::Tensor& buffer : buffers) views.push_back(buffer.view(tensor.sizes()));
    return views;
  }

  Tensors nothing_for_each(const at::Tensor& like) const { return Tensors(getSize(), at::empty({0}, like.options())); }

  // Equal parts where no sizes are given.
  Tensors split(const at::Tensor& tensor, const std::vector<int64_t>& sizes) const {
    TORCH_CHECK(tensor.is_contiguous(), "all_to_all_single needs contiguous tensors");
    TORCH_CHECK(!sizes.empty() || tensor.size(0) % getSize() == 0, "the first dimension, ", tensor.size(0),
                ", is not divisible by the number of ranks, ", getSize());
    return sizes.empty() ? tensor.split(tensor.size(0) / getSize()) : tensor.split_with_sizes(sizes);
  }

  // outputs[r] = rank r's inputs[this rank]. No outputs: nothing comes here.
  WorkPtr exchange_lists(OpType type, const Tensors& outputs, const Tensors& inputs, milliseconds timeout) {
    Tensors incoming, outgoing;
    for (const at::Tensor& input : inputs) outgoing.push_back(flat(input));
    for (const at::Tensor& output : outputs) incoming.push_back(flat(output));
    if (incoming.empty()) incoming = nothing_for_each(outgoing.front());
    incoming[getRank()].copy_(outgoing[getRank()].narrow(0, 0, incoming[getRank()].numel()));
    std::shared_ptr<Exchange::Pending> pending = exchange_->all_to_all(incoming, outgoing, next_tag());
    return work(type, outputs, timeout, [pending, outputs, incoming](Deadline deadline) {
      pending->wait(deadline);
      for (size_t rank = 0; rank < outputs.size(); ++rank) take_back(outputs[rank], incoming[rank]);
    });
  }

  Rest start_all_gather(const at::Tensor& output, const at::Tensor& input) {
    TORCH_CHECK(output.numel() == input.numel() * getSize(), "the gathered tensor has ", output.numel(),
                " elements, but ", getSize(), " ranks have ", input.numel(), " each");
    const at::Tensor buffer = flat(output);
    std::shared_ptr<Exchange::Pending> pending = exchange_->all_gather(buffer, flat(input), next_tag());
    return [pending, output, buffer](Deadline deadline) {
      pending->wait(deadline);
      take_back(output, buffer);
    };
  }

  Rest start_reduce_scatter(const at::Tensor& output, const at::Tensor& input, const ReduceOp& op) {
    TORCH_CHECK(input.numel() == output.numel() * getSize(), "the scattered tensor has ", input.numel(),
                " elements, but ", getSize(), " ranks get ", output.numel(), " each");
    const at::Tensor shard = flat(output), full = flat(input);
    if (is_ordered_sum(op, output)) {
      const double scale = op == ReduceOp::AVG ? 1.0 / getSize() : 1;
      std::shared_ptr<Exchange::Pending> pending =
          exchange_->reduce_scatter(shard, full, scale, next_tag(), std::numeric_limits<int64_t>::max());
      return [pending, output, shard](Deadline deadline) {
        pending->wait(deadline);
        take_back(output, shard);
      };
    }
    const Tensors outgoing = full.chunk(getSize());
    Tensors incoming;
    for (int rank = 0; rank < getSize(); ++rank) {
      incoming.push_back(rank == getRank() ? outgoing[rank] : at::empty_like(shard));
    }
    std::shared_ptr<Exchange::Pending> pending = exchange_->all_to_all(incoming, outgoing, next_tag());
    return [pending, output, shard, incoming, op](Deadline deadline) {
      pending->wait(deadline);
      reduce_parts(op, incoming, shard);
      take_back(output, shard);
    };
  }

  // A reduce-scatter in place and a gather, where the elements can be dealt out evenly; else everything to everybody.
  Rest start_all_reduce(const at::Tensor& tensor, const ReduceOp& op) {
    const at::Tensor buffer = flat(tensor);
    const int64_t numel = buffer.numel();
    if (Exchange::reduces_in_shards(numel, getSize())) {
      const at::Tensor shard = buffer.narrow(0, getRank() * (numel / getSize()), numel / getSize());
      const Rest reducing = start_reduce_scatter(shard, buffer, op);
      return [exchange = exchange_, reducing, tensor, buffer, shard, tag = next_tag()](Deadline deadline) {
        reducing(deadline);
        exchange->all_gather(buffer, shard, tag)->wait(deadline);
        take_back(tensor, buffer);
      };
    }
    const at::Tensor all = at::empty({getSize() * numel}, buffer.options());
    const Rest gathering = start_all_gather(all, buffer);
    return [gathering, all, tensor, buffer, op, size = getSize()](Deadline deadline) {
      gathering(deadline);
      if (buffer.numel() > 0) reduce_parts(op, all.chunk(size), buffer);
      take_back(tensor, buffer);
    };
  }

  std::string name_;
  std::shared_ptr<Exchange> exchange_;
  milliseconds timeout_;
  std::atomic<uint64_t> sequence_number_ = 0;
  std::shared_ptr<Runner> runner_ = std::make_shared<Runner>();
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(const std::string& name, std::shared_ptr<Exchange> exchange,
                                                    int rank, int size, milliseconds timeout) {
  return c10::make_intrusive<ExchangeBackend>(name, std::move(exchange), rank, size, timeout);
}

}  // namespace tessera::comm
