#include "tessera/train/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/models/adapters.h"
#include "tessera/models/initial_values.h"
#include "tessera/models/models.h"
#include "tessera/nn/layers.h"

namespace tessera::train {
namespace {

constexpr const char* kDecoder = "CausalLM";
constexpr const char* kEncoderDecoder = "Seq2SeqLM";

at::ScalarType dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  throw Error(ErrorKind::kUsage, {"there is no dtype '" + name + "'", "--dtype", "use fp32 or bf16"});
}

// Where the model is an adapter's folder: its model and the adapter apart.
TextModelOptions with_base(TextModelOptions options) {
  if (!models::is_peft_folder(options.model) || !options.adapter.empty()) return options;
  options.adapter = std::exchange(options.model, models::base_of(options.model));
  return options;
}

bool is_encoder_decoder(const std::string& folder) {
  const auto& classes = models::find_model_type(models::read_model_config(folder)).classes;
  return std::any_of(classes.begin(), classes.end(), [](const auto& each) { return each.head == kEncoderDecoder; });
}

void load_network(TextModel& text) {
  const TextModelOptions& options = text.options;
  text.network = text.model->network();
  text.writer = dynamic_cast<models::GenerativeNetwork*>(text.network.get());
  if (text.writer == nullptr) {
    throw Error(ErrorKind::kUsage, {"the model does not generate", options.model, "use a causal language model"});
  }
  models::InitialValues values(*text.model, *text.network, options.model, options.seed, options.adapter);
  nn::materialize(
      *text.network, [&](const std::string& name, at::Tensor value) { values.fill(name, std::move(value)); },
      dtype_of(options.dtype));
  values.report();
  text.network->eval();
}

}  // namespace

TextModel load_text_model(TextModelOptions asked, bool may_encode, const std::string& user) {
  TextModel text{.options = with_base(std::move(asked))};
  const TextModelOptions& options = text.options;
  text.encodes = may_encode && is_encoder_decoder(options.model);
  text.model = models::read_model(options.model, text.encodes ? kEncoderDecoder : kDecoder, user).model;
  if (!options.adapter.empty()) {
    const models::PeftFolder adapter = models::read_peft_folder(options.adapter);
    text.model = models::with_adapter(std::move(text.model), adapter.options, options.adapter);
  }
  text.tokenizer = data::load_tokenizer(options.tokenizer.empty() ? options.model : options.tokenizer);
  load_network(text);
  text.config = read_generation_config(options.model, *text.tokenizer);
  return text;
}

models::GenerationOptions generation_options(const TextModel& model, size_t prompt, int64_t usual,
                                             const std::string& user) {
  const TextModelOptions& options = model.options;
  models::GenerationOptions how{.max_new_tokens = options.max_new_tokens > 0 ? options.max_new_tokens : usual,
                                .stop_tokens = model.config.stop_tokens,
                                .decoder_start = model.config.decoder_start,
                                .temperature = options.temperature,
                                .top_k = options.top_k,
                                .top_p = options.top_p,
                                .seed = options.seed};
  const int64_t most = model.model->max_positions();
  if (most == 0) return how;
  const auto read = static_cast<int64_t>(prompt);
  const int64_t wanted = options.max_new_tokens > 0 ? options.max_new_tokens : 1;
  if (read + wanted > most) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("the prompt's {} tokens and {} new ones are more than the {} that the model takes", read,
                             wanted, most),
                 user, "give a shorter prompt, or a smaller --max-new-tokens"});
  }
  how.max_new_tokens = std::min(how.max_new_tokens, most - read);
  return how;
}

void print_now(const std::string& text) {
  if (text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace tessera::train
