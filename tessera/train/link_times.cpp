#include "tessera/train/link_times.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "tessera/models/stages.h"
#include "tessera/nn/layers.h"

namespace tessera::train {
namespace {

// The network with the parameters of one link alone.
std::shared_ptr<models::Network> network_of_link(const models::Model& model, int64_t link, int64_t links,
                                                 at::Device device, at::ScalarType dtype) {
  constexpr int kOthers = 0, kThis = 1;
  models::StageBounds stages{.bounds = {0}, .rank_of_stage = {}};
  const auto add_stage = [&](int64_t end, int rank) {
    if (end == stages.bounds.back()) return;
    stages.bounds.push_back(end);
    stages.rank_of_stage.push_back(rank);
  };
  add_stage(link, kOthers);
  add_stage(link + 1, kThis);
  add_stage(links, kOthers);
  auto network = model.network();
  models::keep_stages_of(kThis, *network, stages);
  constexpr double kDeviation = 0.02;
  const auto fill = [](const std::string& /*name*/, const at::Tensor& value) {
    at::isFloatingType(value.scalar_type()) ? value.normal_(0, kDeviation) : value.zero_();
  };
  nn::materialize(*network, fill, dtype);
  network->to(device);
  network->train();
  return network;
}

struct Pass {
  std::vector<at::Tensor> leaving;
  double seconds = 0;
};

Pass run_link(models::Network& network, size_t link, const std::vector<at::Tensor>& entering,
              const models::NamedTensors& batch) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& tensor : entering) {
    inputs.push_back(tensor.detach().requires_grad_(at::isFloatingType(tensor.scalar_type())));
  }
  const auto begin = std::chrono::steady_clock::now();
  Pass pass{.leaving = network.run_links(link, link + 1, inputs, batch)};
  at::Tensor sum = at::zeros({}, pass.leaving.front().options().dtype(at::kFloat));
  for (const at::Tensor& tensor : pass.leaving) {
    if (tensor.requires_grad()) sum = sum + tensor.sum();
  }
  if (sum.requires_grad()) sum.backward();
  for (at::Tensor& tensor : pass.leaving) tensor = tensor.detach();  // from the link's parameters
  sum.item();                                                        // waits for the device
  pass.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return pass;
}

}  // namespace

std::vector<double> seconds_of_links(const models::Model& model, const models::NamedTensors& batch, at::Device device,
                                     at::ScalarType dtype) {
  constexpr int kTimes = 3;
  const auto links = static_cast<int64_t>(model.network()->links().size());
  std::vector<double> seconds;
  std::vector<at::Tensor> entering;
  for (int64_t link = 0; link < links; ++link) {
    const auto network = network_of_link(model, link, links, device, dtype);
    Pass least = run_link(*network, static_cast<size_t>(link), entering, batch);
    for (int time = 1; time < kTimes; ++time) {
      least.seconds = std::min(least.seconds, run_link(*network, static_cast<size_t>(link), entering, batch).seconds);
    }
    seconds.push_back(least.seconds);
    entering = std::move(least.leaving);
  }
  return seconds;
}

}  // namespace tessera::train
