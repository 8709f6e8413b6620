#include "tessera/optim/signed_mean.h"

namespace tessera::optim {
namespace {

template <class Tensor>
void mean_by_signs(std::span<ParamSlice> slices, const UpdateInput& input, size_t live, Tensor tensor_of) {
  std::vector<at::Tensor> values, lives;
  for (ParamSlice& slice : slices) {
    values.push_back(tensor_of(slice));
    lives.push_back(slice.state[live]);
  }
  input.peers->mean_by_signs(slices, values, lives);
}

}  // namespace

void mean_state_by_signs(std::span<ParamSlice> slices, const UpdateInput& input, size_t k, size_t live) {
  mean_by_signs(slices, input, live, [k](ParamSlice& slice) { return slice.state[k]; });
}

void mean_grad_by_signs(std::span<ParamSlice> slices, const UpdateInput& input, size_t live) {
  mean_by_signs(slices, input, live, [](ParamSlice& slice) { return slice.grad; });
}

void silence_unseen(ParamSlice& slice, size_t second_moment) {
  slice.grad.masked_fill_(slice.state[second_moment].eq(0), 0);
}

}  // namespace tessera::optim
