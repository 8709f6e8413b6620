#include "tessera/zero/unit_peers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/sign_compression.h"

namespace tessera::zero {

std::vector<double> UnitPeers::sum_by_param(std::span<const optim::ParamShard> shards,
                                            std::span<const double> of_shards, size_t width) {
  TESSERA_INVARIANT(of_shards.size() == shards.size() * width);
  std::vector<double> sums(unit_.params().size() * width, 0);
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    for (size_t k = 0; k < width; ++k) sums[shards[shard].param * width + k] += of_shards[shard * width + k];
  }
  if (holds_all()) return sums;

  const auto count = static_cast<int64_t>(sums.size());
  at::Tensor own = at::empty({count}, at::kDouble);
  std::copy(sums.begin(), sums.end(), own.mutable_data_ptr<double>());
  at::Tensor all = at::empty({count * group_.size()}, at::kDouble);
  group_.start_all_gather(all, own, unit_.name() + ": sums").finish();
  std::fill(sums.begin(), sums.end(), 0);
  const double* const values = all.const_data_ptr<double>();
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (int64_t i = 0; i < count; ++i) sums[i] += values[rank * count + i];
  }
  return sums;
}

std::vector<at::Tensor> UnitPeers::whole_grads(std::span<const optim::ParamShard> shards) {
  const layout::FlatLayout& layout = unit_.layout();
  const layout::Range own = unit_.owned();
  const at::Device device = shards.empty() ? at::Device(at::kCPU) : shards.front().grad.device();
  at::Tensor buffer = at::zeros({layout.numel()}, at::TensorOptions(device).dtype(at::kFloat));
  for (const optim::ParamShard& shard : shards) {
    const int64_t offset = layout.params()[shard.param].offset + shard.first;
    buffer.narrow(0, offset, shard.grad.numel()).copy_(shard.grad);
  }
  if (!holds_all()) {
    group_.start_all_gather(buffer, buffer.narrow(0, own.begin, own.numel()), unit_.name() + ": matrices").finish();
  }
  std::vector<at::Tensor> wholes(layout.params().size());
  for (const optim::ParamShard& shard : shards) {
    const layout::FlatParam& place = layout.params()[shard.param];
    wholes[shard.param] = buffer.narrow(0, place.offset, place.numel);
  }
  return wholes;
}

int UnitPeers::owner_of(const optim::ParamShard& shard) const {
  const layout::FlatLayout& layout = unit_.layout();
  return static_cast<int>((layout.params()[shard.param].offset + shard.first) / layout.shard_numel());
}

// Each rank adds up its own shard of the unit, as in a reduce-scatter followed by an all-gather; both ways the shards
// travel compressed.
void UnitPeers::mean_by_signs(std::span<const optim::ParamShard> shards, std::span<at::Tensor> values,
                              std::span<const at::Tensor> live) {
  if (group_.size() == 1) return;
  TESSERA_INVARIANT(unit_.worker_error().defined());
  const layout::FlatLayout& layout = unit_.layout();
  const int rank = group_.rank();
  const auto offset_of = [&](size_t i) { return layout.params()[shards[i].param].offset + shards[i].first; };
  std::vector<int64_t> at_byte(shards.size());  // in the message of its owner's shards
  std::vector<int64_t> message_bytes(group_.size(), 0);
  for (size_t i = 0; i < shards.size(); ++i) {
    int64_t& bytes = message_bytes[owner_of(shards[i])];
    at_byte[i] = bytes;
    bytes += comm::compressed_bytes(values[i].numel());
  }
  const auto message = [](int64_t bytes) { return at::empty({bytes}, at::kByte); };
  const auto place = [&](const at::Tensor& in, size_t i) { return in.mutable_data_ptr<uint8_t>() + at_byte[i]; };

  std::vector<at::Tensor> contributions, received;
  for (int peer = 0; peer < group_.size(); ++peer) {
    contributions.push_back(message(message_bytes[peer]));
    received.push_back(message(message_bytes[rank]));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    at::Tensor error = unit_.worker_error().narrow(0, offset_of(i), values[i].numel());
    comm::compress_signs(values[i], error, live[i], place(contributions[owner_of(shards[i])], i));
  }
  group_.start_all_to_all(received, contributions, unit_.name() + ": signs").finish();

  const at::Tensor mean = message(message_bytes[rank]);
  for (size_t i = 0; i < shards.size(); ++i) {
    if (owner_of(shards[i]) != rank) continue;
    values[i].zero_();
    for (const at::Tensor& from : received) comm::add_signs(place(from, i), 1.0 / group_.size(), live[i], values[i]);
    at::Tensor error = unit_.server_error().narrow(0, offset_of(i) - layout.shard(rank).begin, values[i].numel());
    comm::compress_signs(values[i], error, live[i], place(mean, i));
  }
  std::vector<at::Tensor> means;
  for (int peer = 0; peer < group_.size(); ++peer) means.push_back(message(message_bytes[peer]));
  group_.start_all_to_all(means, std::vector<at::Tensor>(group_.size(), mean), unit_.name() + ": mean signs").finish();
  for (size_t i = 0; i < shards.size(); ++i) {
    values[i].zero_();
    comm::add_signs(place(means[owner_of(shards[i])], i), 1, live[i], values[i]);
  }
}

void UnitPeers::clear_sign_errors() {
  if (!unit_.worker_error().defined()) return;
  unit_.worker_error().zero_();
  unit_.server_error().zero_();
}

}  // namespace tessera::zero
