// A group of ranks and what they exchange, over any c10d::Backend: the world of a run, or a part of it (subgroup()).
//
//   auto gathering = group->start_all_gather(full, shard, "layers.3");     // returns at once
//   …
//   gathering.finish();                                                     // waits; `full` is filled
//
// On a device there is a second end: gathering.wait_on(stream) returns at once, and that stream waits instead.
//
// Each collective carries a label saying what it moves (a unit's name). Messages are matched by (collective, label,
// sequence number), so a rank that runs something other than its peers is never given the wrong bytes: both wait, and
// when the timeout expires the error names rank, collective and label of each. A peer that dies is an error at once.
//
// Sums are added in rank order, in fp32, and rounded once (ordered_sum.h), so an all-reduce has the same bits as a
// reduce-scatter followed by an all-gather.
//
// Tensors: contiguous, on any device (staged_exchange.h); they are borrowed until finish() returns. A group is used by
// one thread at a time (autograd's backward thread counts as its caller's). Every rank of the group issues the same
// collectives; within one channel (see with_channel) in the same order. Ranks are numbered within the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace c10 {
class Stream;
}

namespace tessera {
class Error;
}

namespace tessera::comm {

class Exchange;
class PeerFailure;
struct World;

// A collective in flight, as a group's start_… functions return it. Move-only; one of the functions that wait must be
// called exactly once, or the handle destroyed during unwinding, in which case the messages in flight keep
// their tensors alive until they end.
class Collective {
 public:
  Collective() = default;
  void finish();

  // Waits only until what arrives is there. What this rank sends may still be read by others, so must not be written to
  // until settle() of the group; a tensor that is dropped is kept alive as long as that takes. Spares ranks that are a
  // little ahead the wait for those behind.
  void take_result();

  // What is queued on `stream` from now on finds the result. The host does not wait where NCCL connects the ranks; the
  // tensors are then held until the collective has ended, and one that never does fails the call after it.
  void wait_on(const c10::Stream& stream);

  // For whoever uses `result` next: where that is on a device, the current stream waits; else as take_result() or
  // finish() do.
  void take_for(const at::Tensor& result);
  void finish_for(const at::Tensor& result);

  bool in_flight() const { return finish_ != nullptr; }

 private:
  friend class Group;
  struct Until {
    bool result_alone = false;
    const c10::Stream* stream = nullptr;  // … only orders this one
    Until whole() const { return {.stream = stream}; }
  };
  using Finish = std::function<void(const Until&)>;
  explicit Collective(Finish finish) : finish_(std::move(finish)) {}
  void finish_until(const Until& until);
  Finish finish_;
};

// What this rank has exchanged with others over the groups of one name since the start.
struct GroupUse {
  std::string name;        // empty: the world
  int64_t bytes_sent = 0;  // of tensors
  double waited = 0;       // seconds
};

class Group {
 public:
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  struct Connection;  // the store, the timeout and the board of waits, which all groups of a run share

  Group(const World& world, std::shared_ptr<Connection> connection, std::shared_ptr<Exchange> exchange);
  ~Group();

  // A world of one: every collective is a copy.
  static std::shared_ptr<Group> alone();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int local_rank() const { return local_rank_; }                // of the process, within its host
  int local_size() const { return local_size_; }                // processes of the run on this host; 0: not said
  const std::vector<int>& members() const { return members_; }  // ranks in the world
  const std::string& name() const { return name_; }             // empty: the world

  // These of this group's ranks, this one among them, numbered in the order given: over the same connections, so that
  // it costs nothing. `name`, and `place` (which of several groups of this name, for people), go into errors. Those who
  // are in it make it; two of one name and of the same ranks are told apart by the order in which they were made.
  std::shared_ptr<Group> subgroup(const std::vector<int>& ranks, const std::string& name,
                                  const std::string& place = "");

  // What errors and reports of this run call each rank of the world beside its number: "dp_shard 0, tp 1".
  void name_places(std::vector<std::string> places);

  // The same ranks and connections that count on their own: collectives of two channels may interleave differently
  // on each rank (the gathers of stage 3 and the reductions of backward do). Every rank creates its channels in the
  // same order.
  std::shared_ptr<Group> with_channel(const std::string& name);

  // A channel for another thread, for exchange_texts and barrier only: it talks to the store over a connection of its
  // own, so that neither thread waits for the other. cancel() makes a wait of that thread end with an error.
  std::shared_ptr<Group> for_another_thread(const std::string& name);
  void cancel() { cancelled_ = true; }

  // Flat and uninitialized, in memory from which collectives are fastest: on the CPU, peers of this host read it in
  // place.
  at::Tensor empty(int64_t numel, const at::TensorOptions& options) const;

  // full (size * shard.numel()) = every rank's shard in rank order. `shard` may lie inside `full` at its own place.
  Collective start_all_gather(at::Tensor full, at::Tensor shard, const std::string& label);

  // shard = scale * sum over ranks of their full's part for this rank. `shard` may lie inside `full` at its own place.
  // Moves at most `bucket_numel` elements of `full` at once (one for each rank at least), to bound the memory of what
  // arrives; the result has the same bits with any.
  Collective start_reduce_scatter(at::Tensor shard, at::Tensor full, double scale, const std::string& label,
                                  int64_t bucket_numel = kUnlimited);

  // buffer = scale * sum over ranks of buffer.
  Collective start_all_reduce(at::Tensor buffer, double scale, const std::string& label,
                              int64_t bucket_numel = kUnlimited);

  // incoming[r] = rank r's outgoing[this rank]; flat, sizes as agreed between each two ranks.
  Collective start_all_to_all(std::vector<at::Tensor> incoming, std::vector<at::Tensor> outgoing,
                              const std::string& label);

  // Every rank's buffer = that of `root`.
  Collective start_broadcast(at::Tensor buffer, int root, const std::string& label);

  Collective start_send(at::Tensor buffer, int to, const std::string& label);
  Collective start_receive(at::Tensor buffer, int from, const std::string& label);

  // Whether tensors on that device travel from device to device, and not through the host's memory. Collective.
  bool connects(c10::Device device);

  // Waits until others have read all that this rank has sent in collectives whose results were taken, of any channel.
  // After a device has run what waited for its collectives: throws where one of those has failed.
  void settle();

  // Bytes of tensors that this rank has sent to others since the start, over all channels; a subgroup counts its own.
  int64_t bytes_sent() const;

  // Of all groups of the run that this rank is in and that there still are.
  std::vector<GroupUse> uses() const;

  // Returns once every rank has come here with this label; the timeout's error names the ranks that have not.
  void barrier(const std::string& label);

  // Every rank's text, in rank order: for error reports and other small matters, through the store.
  std::vector<std::string> exchange_texts(const std::string& text, const std::string& label);

 private:
  struct Move;   // what a collective moves
  struct Count;  // what became of all that moved

  Group(Group& parent, const std::string& channel);
  Group(Group& parent, std::vector<int> members, int rank, std::string name, std::string place);

  template <class Start>
  Collective start(const Move& move, const Start& start_exchange);
  template <class Wait>
  void wait(const std::string& operation, const Wait& wait_until);
  bool all_reduces_in_one(const at::Tensor& buffer, const std::string& operation);
  bool look_until(const std::vector<std::string>& keys) const;
  [[noreturn]] void explain_missing(const std::vector<std::string>& keys, const std::string& label) const;
  uint64_t next_tag(const std::string& operation);
  [[noreturn]] void explain(const PeerFailure& failure, const std::string& operation) const;
  Error explained(const PeerFailure& failure, const std::string& operation) const;
  int member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  std::string where() const;
  std::string of_group() const;
  std::string traced(const std::string& operation) const;

  int rank_;
  int local_rank_;
  int local_size_;
  std::vector<int> members_;
  std::string name_;
  std::string place_;
  std::shared_ptr<Connection> connection_;  // null in a group of one
  std::shared_ptr<Exchange> exchange_;      // … likewise
  std::shared_ptr<Count> count_;            // … likewise; of all channels
  std::string channel_;
  struct OwnStore;
  std::shared_ptr<OwnStore> own_store_;
  std::atomic<bool> cancelled_ = false;
  int64_t channels_ = 0;                      // made of this one: two of one name must not be taken for each other
  std::map<std::string, int64_t> subgroups_;  // … by what they are called and who is in them
  int64_t sequence_number_ = 0;
  int64_t text_number_ = 0;  // … of exchange_texts
  std::string last_texts_;   // … and the name of the last
};

struct InitOptions {
  // For each wait of the run, rendezvous included. Zero: TESSERA_TIMEOUT seconds if set, else 600 s. A year at most.
  std::chrono::milliseconds timeout{0};

  // "gloo", "shm", "mpi" or "auto" (backends.h). Empty: TESSERA_BACKEND if set, else "auto". The same on every rank.
  std::string backend;
};

// Joins the run. Collective: every rank calls it. The result is shared by all that communicate; the last owner closes
// the connections. Errors: ErrorKind::kMachine (port in use), ErrorKind::kPeer (names the ranks that did not come).
std::shared_ptr<Group> init_distributed(const InitOptions& options = {});

}  // namespace tessera::comm
