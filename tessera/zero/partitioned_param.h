// A parameter of which each rank keeps a piece, and which belongs to no engine: it was made under zero.Init and waits
// for one (so that a model that fits no single rank can be made at all), or its engine is gone. The parameter itself is
// a placeholder of size 0 meanwhile.
//
// Does not own the parameter: the caller names it in each call, always the same one. Collective: gather, scatter and
// partition are called by every rank in the same order. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::zero {

class PartitionedParam {
 public:
  // Takes the values of rank 0 into equal pieces, rounded to `dtype`, and makes `parameter` a placeholder.
  PartitionedParam(const at::Tensor& parameter, at::ScalarType dtype, std::shared_ptr<comm::Group> group);

  // This rank's part of what a unit at stage 3 holds of its parameter.
  PartitionedParam(const Unit& unit, size_t param, std::shared_ptr<comm::Group> group);

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t numel() const;
  const at::Tensor& piece() const { return piece_; }  // flat

  // The parameter is whole between the two, which may be nested. scatter() with a rank takes over what was written to
  // the parameter there.
  void gather(const at::Tensor& parameter);
  void scatter(const at::Tensor& parameter, std::optional<int> written_by);

  // A whole copy; the placeholder stays one.
  at::Tensor whole() const;

  // The same, and the piece is given up: whoever takes the values keeps them from now on. Where that comes to nothing
  // they are lost, and whole() and gather() say so.
  at::Tensor take();

 private:
  std::shared_ptr<comm::Group> group_;
  std::vector<int64_t> shape_;
  std::vector<layout::Range> pieces_;  // of each rank, in elements of the flattened parameter
  at::Tensor piece_;
  int gathered_ = 0;
};

}  // namespace tessera::zero
