#include "tessera/optim/signed_mean.h"

namespace tessera::optim {
namespace {

template <class Tensor>
void mean_by_signs(std::span<ParamShard> shards, const UpdateInput& input, size_t live, Tensor tensor_of) {
  std::vector<at::Tensor> values, lives;
  for (ParamShard& shard : shards) {
    values.push_back(tensor_of(shard));
    lives.push_back(shard.state[live]);
  }
  input.peers->mean_by_signs(shards, values, lives);
}

}  // namespace

void mean_state_by_signs(std::span<ParamShard> shards, const UpdateInput& input, size_t k, size_t live) {
  mean_by_signs(shards, input, live, [k](ParamShard& shard) { return shard.state[k]; });
}

void mean_grad_by_signs(std::span<ParamShard> shards, const UpdateInput& input, size_t live) {
  mean_by_signs(shards, input, live, [](ParamShard& shard) { return shard.grad; });
}

void silence_unseen(ParamShard& shard, size_t second_moment) {
  shard.grad.masked_fill_(shard.state[second_moment].eq(0), 0);
}

}  // namespace tessera::optim
