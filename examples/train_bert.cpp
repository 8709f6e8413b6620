// BERT masked-language modelling on any text, with everything else in ds_config.json: what a DeepSpeed script of the
// same purpose does in Python.
//
//   tessera launch --nproc 2 train_bert MODEL_FOLDER TEXT.parquet ds_config.json OUTPUT [MAX_STEPS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tessera/tessera.h"

using namespace tessera;

void run(const std::string& folder, const std::string& text, const std::string& ds_config, const std::string& output,
         int64_t max_steps) {
  const auto world = init_distributed();

  const models::FolderModel found = models::read_model(folder, "MaskedLM");
  const auto max_length = std::min<int64_t>(128, found.model->max_positions());
  const auto tokenizer = data::load_tokenizer(folder);
  const data::TokenizedDataset dataset(*tokenizer, {.files = {text}, .max_length = max_length});
  const data::MlmCollator collator(dataset, *tokenizer, {.probability = 0.15, .max_length = max_length});

  const models::PretrainedWeights weights(folder, found.model->base_prefix());
  const auto fill = [&](const std::string& name, at::Tensor value) {
    if (!weights.fill(name, value)) found.model->initialize(/*seed=*/42, name, value);
  };
  const auto engine = initialize(found.model->network(), ds_config, {.world = world, .fill = fill});

  data::LoaderOptions options = train::loader_options(*engine);
  options.drop_last = true;
  data::Loader<data::Batch> loader(collator.samples(), options);
  if (max_steps == 0) max_steps = 3 * loader.steps_per_epoch();
  engine->train();
  while (engine->global_steps() < max_steps) {
    double sum = 0;
    for (const data::Batch& batch : loader.next().micro_batches) {
      const at::Tensor loss = train::batch_loss(*engine, batch).sum / std::max<int64_t>(1, batch.target_tokens);
      engine->backward(loss);
      engine->step();
      sum += loss.item<double>();
    }
    if (world->rank() == 0) {
      std::printf("step %ld  loss %.4f\n", engine->global_steps(), sum / static_cast<double>(options.accumulation));
      std::fflush(stdout);
    }
  }
  const std::string checkpoint = engine->save_checkpoint(output);
  if (world->rank() == 0) {
    checkpoint::export_hf({.checkpoint = checkpoint, .model = folder, .output = output + "/export"});
  }
  world->barrier("the end");
}

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER TEXT ds_config.json OUTPUT [MAX_STEPS]\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3], argv[4], argc > 5 ? std::atoll(argv[5]) : 0);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return exit_code(error.kind());
  }
  return 0;
}
