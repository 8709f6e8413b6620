// For test_generation.py: the tokens that a Hugging Face folder's model goes on with.
//
//   generate_tool FOLDER '{"prompts": [[5, 6], [7]], "max_new_tokens": 20, "beams": 3, …}' …
//
// The keys of a request are those of models::GenerationOptions; "prompt": of one row. Prints of each request the new
// tokens, a line a row. With "turns", prompts of which each begins with what is kept of the one before: a line each, of
// its new tokens, and behind a bar how many positions were computed for them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tessera/models/generation.h"
#include "tessera/models/models.h"
#include "tests/models/logits_tool.h"

using namespace tessera;

namespace {

std::shared_ptr<models::GenerativeNetwork> load(const std::string& folder) {
  const std::string type = models::model_type_of(models::read_model_config(folder));
  const auto loaded = models::load_network(folder, type == "t5" ? "Seq2SeqLM" : "CausalLM");
  return std::dynamic_pointer_cast<models::GenerativeNetwork>(loaded);
}

void answer(models::GenerativeNetwork& network, const nlohmann::json& given) {
  std::vector<std::vector<int32_t>> prompts;
  if (given.contains("prompt")) prompts.push_back(given["prompt"].get<std::vector<int32_t>>());
  if (given.contains("prompts")) prompts = given["prompts"].get<std::vector<std::vector<int32_t>>>();
  std::vector<std::vector<int32_t>> heard(prompts.size());
  models::GenerationOptions options{.max_new_tokens = given.value("max_new_tokens", int64_t{20}),
                                    .stop_tokens = given.value("stop_tokens", std::vector<int32_t>()),
                                    .temperature = given.value("temperature", 0.0),
                                    .top_k = given.value("top_k", int64_t{0}),
                                    .top_p = given.value("top_p", 1.0),
                                    .seed = given.value("seed", uint64_t{42}),
                                    .beams = given.value("beams", int64_t{1}),
                                    .length_penalty = given.value("length_penalty", 1.0),
                                    .on_token = [&](size_t row, int32_t token) { heard.at(row).push_back(token); }};
  if (given.contains("decoder_start")) options.decoder_start = given["decoder_start"].get<int64_t>();
  if (given.contains("turns")) {
    models::KeptText kept;
    options.kept = &kept;
    options.on_token = nullptr;
    for (const auto& prompt : given["turns"].get<std::vector<std::vector<int32_t>>>()) {
      const int64_t before = kept.computed;
      const auto made = models::generate(network, prompt, options);
      fmt::print("{} | {}\n", fmt::join(made, " "), kept.computed - before);
    }
    return;
  }
  const auto made = models::generate_rows(network, prompts, options);
  if (heard != made) throw std::logic_error("what was heard is not what was made");
  for (const auto& row : made) fmt::print("{}\n", fmt::join(row, " "));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  return models::run_tool([&] {
    const auto network = load(argv[1]);
    for (int i = 2; i < argc; ++i) answer(*network, nlohmann::json::parse(argv[i]));
  });
}
