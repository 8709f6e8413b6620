// For test_causal_parity.py: what a Hugging Face folder's causal language model computes.
//
//   causal_logits_tool FOLDER INPUT.safetensors OUTPUT.safetensors [CACHED]
//
// INPUT holds input_ids, labels and, where they matter, attention_mask and position_ids, (batch, length) int64. OUTPUT
// gets logits and loss_sum, and the gradient of the loss with respect to each parameter, by name. With CACHED, a number
// of tokens, also the logits when those come first and the rest one by one, over caches: cached_logits. Prints the
// names that found no partner.
#include <ATen/ATen.h>

#include <cstdio>
#include <exception>
#include <string>

#include "tessera/models/causal_network.h"
#include "tessera/models/model.h"
#include "tessera/storage/safetensors.h"

using namespace tessera;

namespace {

models::NamedTensors part_of(const storage::SafetensorsFile& file, int64_t first, int64_t count) {
  models::NamedTensors part;
  for (const auto& [name, entry] : file.entries()) {
    const at::Tensor whole = file.tensor(name);
    // A mask says of all keys so far which are there.
    const bool all_before = name == "attention_mask";
    part.set(name, all_before ? whole.narrow(1, 0, first + count) : whole.narrow(1, first, count));
  }
  return part;
}

at::Tensor cached_logits(models::CausalNetwork& network, const storage::SafetensorsFile& file, int64_t at_once) {
  const at::NoGradGuard no_grad;
  models::Caches caches = network.make_caches();
  const int64_t length = file.tensor("input_ids").size(1);
  std::vector<at::Tensor> logits{network.logits(part_of(file, 0, at_once), &caches)};
  for (int64_t at = at_once; at < length; ++at) logits.push_back(network.logits(part_of(file, at, 1), &caches));
  return at::cat(logits, 1);
}

void run(int argc, char** argv) {
  const auto [as, model] = models::read_model(argv[1], "CausalLM");
  const auto network = std::dynamic_pointer_cast<models::CausalNetwork>(model->network());
  const models::PretrainedWeights weights(argv[1], model->base_prefix());
  nn::materialize(*network, [&](const std::string& name, at::Tensor value) {
    if (weights.fill(name, value)) return;
    std::printf("missing %s\n", name.c_str());
    model->initialize(42, name, std::move(value));
  });
  std::vector<std::string> names;
  for (const auto& item : network->named_parameters()) names.push_back(item.key());
  for (const std::string& name : weights.unexpected(names)) std::printf("unexpected %s\n", name.c_str());

  network->eval();
  const storage::SafetensorsFile file(argv[2]);
  const models::NamedTensors batch = part_of(file, 0, file.tensor("input_ids").size(1));
  std::vector<std::pair<std::string, at::Tensor>> results{{"logits", network->logits(batch).detach()}};
  const at::Tensor loss = network->loss_sum(batch);
  loss.backward();
  results.emplace_back("loss_sum", loss.detach());
  if (argc > 4) results.emplace_back("cached_logits", cached_logits(*network, file, std::stoll(argv[4])));
  for (const auto& item : network->named_parameters()) results.emplace_back("grad/" + item.key(), item.value().grad());

  std::vector<storage::PlannedTensor> plan;
  for (const auto& [name, tensor] : results) plan.push_back({name, at::kFloat, tensor.sizes().vec()});
  storage::SafetensorsWriter writer(argv[3], std::move(plan));
  for (const auto& [name, tensor] : results) writer.add(tensor.contiguous());
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
