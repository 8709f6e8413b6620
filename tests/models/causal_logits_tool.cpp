// For test_causal_parity.py: what a Hugging Face folder's causal language model computes.
//
//   causal_logits_tool FOLDER INPUT.safetensors OUTPUT.safetensors [CACHED]
//
// INPUT holds input_ids, labels and, where they matter, attention_mask and position_ids, (batch, length) int64. OUTPUT
// gets logits and loss_sum, and the gradient of the loss with respect to each parameter, by name. With CACHED, a number
// of tokens, also the logits when those come first and the rest one by one, over caches: cached_logits. Prints the
// names that found no partner.
#include <ATen/ATen.h>

#include <string>

#include "tessera/models/causal_network.h"
#include "tests/models/logits_tool.h"

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
  const auto network = std::dynamic_pointer_cast<models::CausalNetwork>(models::load_network(argv[1], "CausalLM"));
  const storage::SafetensorsFile file(argv[2]);
  const models::NamedTensors batch = part_of(file, 0, file.tensor("input_ids").size(1));
  models::NamedResults results{{"logits", network->logits(batch).detach()}};
  if (argc > 4) results.emplace_back("cached_logits", cached_logits(*network, file, std::stoll(argv[4])));
  models::write_results(argv[3], *network, network->loss_sum(batch), std::move(results));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  return models::run_tool([&] { run(argc, argv); });
}
