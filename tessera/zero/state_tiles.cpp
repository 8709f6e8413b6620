#include "tessera/zero/state_tiles.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::zero {
namespace {

constexpr int64_t kMostTileNumel = 8 << 20;

enum Part : size_t { kWeightPart, kGradPart, kComputePart, kFirstState };

bool is_swapped(const Unit& unit) {
  const auto swapped = [](const StateTensor& tensor) { return tensor.swapped(); };
  return swapped(unit.master()) || swapped(unit.compute()) || swapped(unit.grad()) ||
         std::any_of(unit.optimizer_state().begin(), unit.optimizer_state().end(), swapped);
}

}  // namespace

int64_t largest_tile(const Offload& offload) {
  return std::max(kTileAlign, std::min(offload.sub_group_size, kMostTileNumel) / kTileAlign * kTileAlign);
}

int64_t tile_slots(const ShardedModel& model) {
  const Offload& offload = model.policy().offload;
  const auto kinds = static_cast<int64_t>(kFirstState + model.state_count());
  const config::OffloadOptions& options = offload.optimizer_options;
  const int64_t overlapped = 1 + (options.pipeline_read ? 1 : 0) + (options.pipeline_write ? 1 : 0);
  return std::max(overlapped, options.buffer_count / kinds);
}

StateTiles::StateTiles(ShardedModel& model, bool cuts, const std::vector<at::Tensor>* grads)
    : model_(model), grads_(grads), offload_(model.policy().offload), slots_(model.tile_buffers()) {
  const int64_t most = largest_tile(offload_);
  for (size_t index = 0; index < model.units().size(); ++index) {
    const Unit& unit = *model.units()[index];
    if (!unit.trainable()) continue;
    const int64_t whole = unit.owned().numel();
    const int64_t step = cuts && is_swapped(unit) ? most : whole;
    for (int64_t begin = 0; begin < whole; begin += step) {
      cuts_.push_back({index, {begin, std::min(begin + step, whole)}});
    }
  }
  slots_.resize(static_cast<size_t>(tile_slots(model)));  // once: they stay with the model
}

StateTiles::~StateTiles() {
  for (TileBuffers& buffers : slots_) {
    try {
      finish_writing(buffers);
    } catch (const Error&) {  // thrown while another one is on its way, or by a file that failed already
    }
  }
}

void StateTiles::finish_writing(TileBuffers& buffers) {
  for (TileBuffers::Part& part : buffers.parts) {
    if (part.transfer != 0) part.home.finish(std::exchange(part.transfer, 0));
  }
}

void StateTiles::start_reading(size_t number) {
  const auto& [index, range] = cuts_[number];
  Unit& unit = *model_.units()[index];
  TileBuffers& buffers = buffers_of(number);
  finish_writing(buffers);                            // of the tile that was here before
  if (unit.compute().swapped()) unit.forget_fetch();  // a forward since backward may have begun one
  buffers.parts.resize(kFirstState + unit.optimizer_state().size());
  const auto begin = [&](size_t part, const StateTensor& home, bool reads) {
    TileBuffers::Part& place = buffers.parts[part];
    place.home = home;
    if (home.swapped() && reads) place.transfer = home.start_read(range, place.buffer);
  };
  begin(kWeightPart, unit.master(), true);
  begin(kGradPart, StateTensor(), false);
  if (unit.grad().swapped()) begin(kGradPart, unit.grad(), true);
  begin(kComputePart, unit.has_master() && grads_ == nullptr ? unit.compute() : StateTensor(), false);
  for (size_t k = 0; k < unit.optimizer_state().size(); ++k) begin(kFirstState + k, unit.optimizer_state()[k], true);
}

at::Tensor StateTiles::grad_of(size_t unit) const {
  return grads_ != nullptr ? (*grads_)[unit] : model_.reducer().owned_grad(unit);
}

bool StateTiles::next() {
  if (next_ == cuts_.size()) return false;
  const size_t wanted = std::min(next_ + (offload_.optimizer_options.pipeline_read ? 2 : 1), cuts_.size());
  for (; started_ < wanted; ++started_) start_reading(started_);
  const auto& [index, range] = cuts_[next_];
  Unit& unit = *model_.units()[index];
  TileBuffers& buffers = buffers_of(next_);
  const auto tensor = [&](size_t number) -> at::Tensor {
    TileBuffers::Part& part = buffers.parts[number];
    if (!part.home.defined()) return {};
    if (!part.home.swapped()) return elements(part.home.tensor(), range);
    if (part.transfer != 0) part.home.finish(std::exchange(part.transfer, 0));
    return part.home.view_in(part.buffer, range);
  };
  tile_ = {.unit = index,
           .range = range,
           .weight = tensor(kWeightPart),
           .grad = unit.grad().swapped() ? tensor(kGradPart) : elements(grad_of(index), range),
           .compute = tensor(kComputePart),
           .first_of_unit = range.begin == 0,
           .last_of_unit = range.end == unit.owned().numel(),
           .swapped = is_swapped(unit)};
  for (size_t k = 0; k < unit.optimizer_state().size(); ++k) tile_.state.push_back(tensor(kFirstState + k));
  ++next_;
  return true;
}

void StateTiles::put_back() {
  TileBuffers& buffers = buffers_of(next_ - 1);
  for (size_t number = 0; number < buffers.parts.size(); ++number) {
    TileBuffers::Part& part = buffers.parts[number];
    if (number == kGradPart || !part.home.swapped()) continue;
    part.transfer = part.home.start_write(tile_.range, part.buffer);
  }
  if (!offload_.optimizer_options.pipeline_write) finish_writing(buffers);
  if (next_ < cuts_.size()) return;
  for (TileBuffers& each : slots_) finish_writing(each);
}

}  // namespace tessera::zero
