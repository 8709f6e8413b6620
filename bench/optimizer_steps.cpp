// Our side of bench/optimizer: `optimizer_steps NUMEL` says which optimizers there are, then reads names of cases from
// standard input and answers each with the seconds that one step over NUMEL parameters took.
//
//   adamw_fp32   AdamW as the engine runs it in fp32                              28 bytes a parameter
//   adamw_bf16   gradient in bf16 to master weights and moments to bf16 weights   28
//   loop_fp32    a plain loop that reads four fp32 arrays and writes three of them: the bound that memory sets
//   loop_bf16    the same traffic as adamw_bf16, and no more arithmetic than moving it takes
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "tessera/optim/adam.h"

namespace {

using namespace tessera::optim;

struct State {
  explicit State(int64_t numel)
      : weight(at::randn({numel})), exp_avg(at::zeros({numel})), exp_avg_sq(at::zeros({numel})) {}
  at::Tensor weight, exp_avg, exp_avg_sq;
};

void adamw(State& state, const at::Tensor& grad, const at::Tensor& compute, int64_t step) {
  static const Adam adam({.decoupled_decay = true});
  static const std::vector<ParamGroup> groups{{.lr = 1e-4, .weight_decay = 0.01}};
  std::vector<ParamShard> shards{{.weight = state.weight,
                                  .grad = grad,
                                  .state = {state.exp_avg, state.exp_avg_sq},
                                  .compute = compute,
                                  .step = step}};
  adam.update(shards, {.groups = groups});
}

template <class Grad>
void loop(State& state, const Grad* grad, Grad* compute, int64_t numel) {
  float* const w = state.weight.data_ptr<float>();
  float* const m = state.exp_avg.data_ptr<float>();
  float* const v = state.exp_avg_sq.data_ptr<float>();
  at::parallel_for(0, numel, 65536, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      w[i] += 1.0f;
      m[i] += 1.0f;
      v[i] += 1.0f;
      if constexpr (sizeof(Grad) == 4) {
        w[i] += grad[i];
      } else {
        compute[i] = grad[i] ^ static_cast<Grad>(1);
      }
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int64_t numel = std::atoll(argv[1]);
  State state(numel);
  const at::Tensor grad = at::randn({numel}) * 1e-3, grad16 = grad.to(at::kBFloat16);
  const at::Tensor compute = state.weight.to(at::kBFloat16);
  const at::Tensor no_compute;
  int64_t step = 0;
  auto* const bits_in = static_cast<const uint16_t*>(grad16.data_ptr());
  auto* const bits_out = static_cast<uint16_t*>(compute.data_ptr());
  const std::map<std::string, std::function<void()>> cases = {
      {"adamw_fp32", [&] { adamw(state, grad, no_compute, ++step); }},
      {"adamw_bf16", [&] { adamw(state, grad16, compute, ++step); }},
      {"loop_fp32", [&] { loop<float>(state, grad.data_ptr<float>(), nullptr, numel); }},
      {"loop_bf16", [&] { loop<uint16_t>(state, bits_in, bits_out, numel); }},
  };
  std::printf("adamw,loop\n");
  std::fflush(stdout);
  for (std::string name; std::getline(std::cin, name);) {
    const auto begin = std::chrono::steady_clock::now();
    cases.at(name)();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.9f\n", seconds.count());
    std::fflush(stdout);
  }
  return 0;
}
