// For test_seq2seq_parity.py: what a Hugging Face folder's encoder-decoder computes.
//
//   seq2seq_logits_tool FOLDER INPUT.safetensors OUTPUT.safetensors
//
// INPUT holds input_ids and labels, and attention_mask where some are padding, (batch, length) int64. OUTPUT gets
// logits and loss_sum, and the gradient of the loss with respect to each parameter, by name. Prints the names that
// found no partner.
#include "tessera/models/t5.h"
#include "tests/models/logits_tool.h"

using namespace tessera;

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  return models::run_tool([&] {
    const auto network =
        std::dynamic_pointer_cast<models::T5ForConditionalGeneration>(models::load_network(argv[1], "Seq2SeqLM"));
    const storage::SafetensorsFile file(argv[2]);
    models::NamedTensors batch;
    for (const auto& [name, entry] : file.entries()) batch.set(name, file.tensor(name));
    models::write_results(argv[3], *network, network->loss_sum(batch), {{"logits", network->logits(batch).detach()}});
  });
}
