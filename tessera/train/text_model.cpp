#include "tessera/train/text_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/models/adapters.h"
#include "tessera/models/initial_values.h"
#include "tessera/models/models.h"
#include "tessera/nn/layers.h"
#include "tessera/train/written_texts.h"

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

// All is frozen, so there is nothing but weights; the optimizer has nothing to do. Small units are sharded as well.
nlohmann::json engine_config(const std::string& dtype) {
  return {{"train_micro_batch_size_per_gpu", 1},
          {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0}}}}},
          {"bf16", {{"enabled", dtype_of(dtype) == at::kBFloat16}}},
          {"zero_optimization", {{"stage", 3}, {"stage3_param_persistence_threshold", 0}}}};
}

void report_shards(const TextModel& text, comm::Group& world) {
  const int64_t own = text.engine->model_state_bytes();
  std::vector<std::string> ranks;
  int64_t all = 0;
  for (const std::string& bytes : world.exchange_texts(std::to_string(own), "the weights' shards")) {
    all += std::stoll(bytes);
    ranks.push_back(format_bytes(std::stoull(bytes)));
  }
  if (world.rank() != 0) return;
  log_info("the weights, {}, are sharded over {} ranks: {}", format_bytes(static_cast<uint64_t>(all)), world.size(),
           fmt::join(ranks, ", "));
}

}  // namespace

TextModel read_text_model(TextModelOptions asked, bool may_encode, const std::string& user) {
  TextModel text{.options = with_base(std::move(asked))};
  const TextModelOptions& options = text.options;
  dtype_of(options.dtype);  // refuses one that is none
  text.encodes = may_encode && is_encoder_decoder(options.model);
  text.model = models::read_model(options.model, text.encodes ? kEncoderDecoder : kDecoder, user).model;
  if (!options.adapter.empty()) {
    const models::PeftFolder adapter = models::read_peft_folder(options.adapter);
    text.model = models::with_adapter(std::move(text.model), adapter.options, options.adapter);
  }
  const std::string& tokenizer = options.tokenizer.empty() ? options.model : options.tokenizer;
  text.tokenizer = data::load_tokenizer(tokenizer);
  data::require_vocabulary(*text.tokenizer, tokenizer, text.model->vocab_size(), options.model + "/config.json");
  text.config = read_generation_config(options.model, *text.tokenizer);
  return text;
}

void load_weights(TextModel& text, const std::shared_ptr<comm::Group>& world) {
  const TextModelOptions& options = text.options;
  text.network = text.model->network();
  text.writer = dynamic_cast<models::GenerativeNetwork*>(text.network.get());
  if (text.writer == nullptr) {
    throw Error(ErrorKind::kUsage, {"the model does not generate", options.model, "use a causal language model"});
  }
  models::InitialValues values(*text.model, *text.network, options.model, options.seed, options.adapter);
  const auto fill = [&](const std::string& name, at::Tensor value) { values.fill(name, std::move(value)); };
  text.network->eval();
  if (world->size() == 1) {
    nn::materialize(*text.network, fill, dtype_of(options.dtype));
  } else {
    for (at::Tensor& parameter : text.network->parameters()) parameter.requires_grad_(false);
    text.engine = initialize(text.network, engine_config(options.dtype), {.world = world, .fill = fill});
    report_shards(text, *world);
  }
  if (world->rank() == 0) values.report({}, *comm::Group::alone());
  report_doubts(text.config, world->rank());
}

std::vector<int32_t> write_text(TextModel& model, const std::vector<int32_t>& prompt,
                                const models::GenerationOptions& options) {
  if (!model.engine) return models::generate(*model.writer, prompt, options);
  return write_rows(*model.engine, {prompt}, options).front();
}

void take_part(TextModel& model) { write_rows(*model.engine, {}, {}); }

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
