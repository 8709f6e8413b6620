// For test_bert_parity.py: what a Hugging Face folder's model of BERT's family computes.
//
//   bert_logits_tool FOLDER INPUT.safetensors OUTPUT.safetensors [HEAD]
//
// INPUT holds input_ids, attention_mask, token_type_ids, (batch, length) int64, and labels: of MaskedLM, which HEAD is
// if it is not given, (batch, length), of SequenceClassification (batch). OUTPUT gets logits and loss_sum, and the
// gradient of the loss with respect to each parameter, by name. Prints the names that found no partner.
#include "tessera/models/bert.h"
#include "tests/models/logits_tool.h"

using namespace tessera;

namespace {

at::Tensor logits_of(models::Network& network, const models::NamedTensors& batch) {
  if (auto* const classifier = dynamic_cast<models::SequenceClassifier*>(&network)) return classifier->logits(batch);
  return dynamic_cast<models::BertForMaskedLM&>(network).forward(models::bert_input(batch));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  return models::run_tool([&] {
    const auto network = models::load_network(argv[1], argc > 4 ? argv[4] : "MaskedLM");
    const storage::SafetensorsFile file(argv[2]);
    models::NamedTensors batch;
    for (const auto& [name, entry] : file.entries()) batch.set(name, file.tensor(name));
    models::write_results(argv[3], *network, network->loss_sum(batch),
                          {{"logits", logits_of(*network, batch).detach()}});
  });
}
