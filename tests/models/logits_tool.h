// What the tools beside it share, which compute what a Hugging Face folder's model computes, for the parity tests.
#pragma once

#include <ATen/ATen.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/model.h"
#include "tessera/nn/layers.h"
#include "tessera/storage/safetensors.h"

namespace tessera::models {

using NamedResults = std::vector<std::pair<std::string, at::Tensor>>;

// With the folder's weights, for evaluation. Prints the names that found no partner.
inline std::shared_ptr<Network> load_network(const std::string& folder, const std::string& head) {
  const auto [as, model] = read_model(folder, head);
  const std::shared_ptr<Network> network = model->network();
  const PretrainedWeights weights(folder, model->base_prefix());
  nn::materialize(*network, [&](const std::string& name, at::Tensor value) {
    if (weights.fill(name, value)) return;
    std::printf("missing %s\n", name.c_str());
    model->initialize(42, name, std::move(value));
  });
  std::vector<std::string> names;
  for (const auto& item : network->named_parameters()) names.push_back(item.key());
  for (const std::string& name : weights.unexpected(names)) std::printf("unexpected %s\n", name.c_str());
  network->eval();
  return network;
}

// Runs backward from the loss, and writes it, the results, and the gradient of each parameter as "grad/" + its name.
inline void write_results(const std::string& path, const Network& network, const at::Tensor& loss,
                          NamedResults results) {
  loss.backward();
  results.emplace_back("loss_sum", loss.detach());
  for (const auto& item : network.named_parameters()) results.emplace_back("grad/" + item.key(), item.value().grad());
  std::vector<storage::PlannedTensor> plan;
  for (const auto& [name, tensor] : results) plan.push_back({name, at::kFloat, tensor.sizes().vec()});
  storage::SafetensorsWriter writer(path, std::move(plan));
  for (const auto& [name, tensor] : results) writer.add(tensor.contiguous());
  writer.finish();
}

// A tool's main: an error is one line and exit code 2.
template <class Run>
int run_tool(Run run) {
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace tessera::models
