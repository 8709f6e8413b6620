// For test_bert_parity.py: the logits of a Hugging Face folder's BERT.
//
//   bert_logits_tool FOLDER INPUT.safetensors OUTPUT.safetensors
//
// INPUT holds input_ids, attention_mask, token_type_ids and labels, (batch, length) int64. OUTPUT gets logits and
// loss_sum, and the gradient of the loss with respect to each parameter, by name. Prints the names that found no
// partner.
#include <ATen/ATen.h>

#include <cstdio>
#include <exception>

#include "tessera/models/bert.h"
#include "tessera/models/model.h"
#include "tessera/storage/safetensors.h"

using namespace tessera;

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const std::string folder = argv[1];
    const auto config = models::read_bert_config(folder);
    models::BertForMaskedLM model(config);
    const models::PretrainedWeights weights(folder, "bert.");
    nn::materialize(model, [&](const std::string& name, at::Tensor value) {
      if (weights.fill(name, value)) return;
      std::printf("missing %s\n", name.c_str());
      models::initialize_bert_parameter(config, 42, name, std::move(value));
    });
    std::vector<std::string> names;
    for (const auto& item : model.named_parameters()) names.push_back(item.key());
    for (const std::string& name : weights.unexpected(names)) std::printf("unexpected %s\n", name.c_str());

    model.eval();
    const storage::SafetensorsFile file(argv[2]);
    const models::BertInput input{.input_ids = file.tensor("input_ids"),
                                  .attention_mask = file.tensor("attention_mask"),
                                  .token_type_ids = file.tensor("token_type_ids")};
    const at::Tensor logits = model.forward(input).detach();
    const at::Tensor loss = model.masked_loss_sum(input, file.tensor("labels"));
    loss.backward();

    std::vector<storage::PlannedTensor> plan{{"logits", at::kFloat, logits.sizes().vec()},
                                             {"loss_sum", at::kFloat, {}}};
    std::vector<at::Tensor> tensors{logits, loss.detach()};
    for (const auto& item : model.named_parameters()) {
      plan.push_back({"grad/" + item.key(), at::kFloat, item.value().sizes().vec()});
      tensors.push_back(item.value().grad());
    }
    storage::SafetensorsWriter writer(argv[3], std::move(plan));
    for (const at::Tensor& tensor : tensors) writer.add(tensor);
    writer.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
