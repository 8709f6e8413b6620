// For test_flops.py: what estimates count of a Hugging Face folder's model.
//
//   flops_tool FOLDER HEAD TEXTS LENGTH WRITTEN TARGETS
//
// The numbers are of models::BatchShape. Prints the floating-point operations of forward, and of forward and backward.
#include "tessera/models/census.h"
#include "tessera/models/flops.h"
#include "tests/models/logits_tool.h"

using namespace tessera;

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  return models::run_tool([&] {
    const auto [as, model] = models::read_model(argv[1], argv[2]);
    const models::ModelCensus census = models::census_of(*model, as.name, argv[1]);
    const models::BatchShape batch{.texts = std::stoll(argv[3]),
                                   .length = std::stoll(argv[4]),
                                   .written = std::stoll(argv[5]),
                                   .targets = std::stoll(argv[6])};
    std::printf("%.0f %.0f\n", models::forward_flops(*census.architecture, batch),
                models::training_flops(census, batch));
  });
}
