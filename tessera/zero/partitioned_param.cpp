#include "tessera/zero/partitioned_param.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "tessera/base/error.h"
#include "tessera/zero/param_pieces.h"

namespace tessera::zero {
namespace {

constexpr const char* kLabel = "partitioned parameter";

void set_data(const at::Tensor& parameter, const at::Tensor& data) {
  const_cast<at::Tensor&>(parameter).set_data(data);
}

void become_placeholder(const at::Tensor& parameter, const at::Tensor& like) {
  set_data(parameter, at::empty({0}, like.options()));
}

}  // namespace

PartitionedParam::PartitionedParam(const at::Tensor& parameter, at::ScalarType dtype,
                                   std::shared_ptr<comm::Group> group)
    : group_(std::move(group)), shape_(parameter.sizes().vec()) {
  const at::NoGradGuard no_grad;
  const int64_t share = (numel() + group_->size() - 1) / group_->size();
  for (int64_t rank = 0; rank < group_->size(); ++rank) {
    pieces_.push_back({std::min(rank * share, numel()), std::min((rank + 1) * share, numel())});
  }
  at::Tensor values = parameter.detach().to(dtype).contiguous().view({-1});
  group_->start_broadcast(values, /*root=*/0, kLabel).finish();
  const layout::Range own = pieces_[static_cast<size_t>(group_->rank())];
  piece_ = values.narrow(0, own.begin, own.numel()).clone();
  become_placeholder(parameter, piece_);
}

PartitionedParam::PartitionedParam(const Unit& unit, size_t param, std::shared_ptr<comm::Group> group)
    : group_(std::move(group)), shape_(unit.layout().params()[param].shape), pieces_(unit.layout().parts_of(param)) {
  const at::NoGradGuard no_grad;
  const layout::Range own = pieces_[static_cast<size_t>(group_->rank())];
  const at::Tensor& parameter = unit.params()[param].tensor;
  if (own.numel() > 0) {
    const int64_t offset = unit.layout().params()[param].offset + own.begin - unit.owned().begin;
    piece_ = unit.compute().load().narrow(0, offset, own.numel()).clone();
  } else {
    piece_ = at::empty({0}, parameter.options().dtype(unit.compute().dtype()));
  }
  if (!unit.is_bytes()) return;
  // From bytes to elements of the parameter. Shards begin at multiples of layout::kAlignNumel, so none cuts an element.
  const auto bytes = static_cast<int64_t>(parameter.element_size());
  if (!shape_.empty()) shape_.back() /= bytes;
  for (layout::Range& piece : pieces_) piece = {piece.begin / bytes, piece.end / bytes};
  piece_ = piece_.view(parameter.scalar_type());
}

int64_t PartitionedParam::numel() const { return c10::multiply_integers(shape_); }

at::Tensor PartitionedParam::whole() const {
  if (!piece_.defined()) {
    throw Error(ErrorKind::kUsage,
                {"the values of a partitioned parameter are gone: initialize took them for an engine "
                 "that could not be made",
                 "initialize", "make the model anew"});
  }
  return assembled(pieces_, piece_, *group_, kLabel).view(shape_);
}

at::Tensor PartitionedParam::take() {
  at::Tensor values = whole();
  piece_.reset();
  return values;
}

void PartitionedParam::gather(const at::Tensor& parameter) {
  if (gathered_++ == 0) set_data(parameter, whole());
}

void PartitionedParam::scatter(const at::Tensor& parameter, std::optional<int> written_by) {
  TESSERA_INVARIANT(gathered_ > 0);
  const at::NoGradGuard no_grad;
  if (written_by) {
    require_writer(*written_by, group_->size());
    at::Tensor values = parameter.detach().contiguous().view({-1});
    group_->start_broadcast(values, *written_by, kLabel).finish();
    const layout::Range own = pieces_[static_cast<size_t>(group_->rank())];
    piece_.copy_(values.narrow(0, own.begin, own.numel()));
  }
  if (--gathered_ == 0) become_placeholder(parameter, piece_);
}

}  // namespace tessera::zero
