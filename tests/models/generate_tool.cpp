// For test_generation.py: the tokens that a Hugging Face folder's model goes on with.
//
//   generate_tool FOLDER '{"prompt": [5, 6], "max_new_tokens": 20, "beams": 3, …}'
//
// The keys are those of models::GenerationOptions. Prints the new tokens.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "tessera/models/generation.h"
#include "tessera/models/model.h"

using namespace tessera;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const auto given = nlohmann::json::parse(argv[2]);
    const auto [as, model] = models::read_model(argv[1], "CausalLM");
    const auto network = std::dynamic_pointer_cast<models::CausalNetwork>(model->network());
    const models::PretrainedWeights weights(argv[1], model->base_prefix());
    nn::materialize(*network, [&](const std::string& name, at::Tensor value) { weights.fill(name, std::move(value)); });
    network->eval();
    std::vector<int32_t> heard;
    const auto made = models::generate(*network, given.at("prompt").get<std::vector<int32_t>>(),
                                       {.max_new_tokens = given.value("max_new_tokens", int64_t{20}),
                                        .stop_tokens = given.value("stop_tokens", std::vector<int32_t>()),
                                        .temperature = given.value("temperature", 0.0),
                                        .top_k = given.value("top_k", int64_t{0}),
                                        .top_p = given.value("top_p", 1.0),
                                        .seed = given.value("seed", uint64_t{42}),
                                        .beams = given.value("beams", int64_t{1}),
                                        .length_penalty = given.value("length_penalty", 1.0),
                                        .on_token = [&](int32_t token) { heard.push_back(token); }});
    if (heard != made) throw std::logic_error("what was heard is not what was made");
    fmt::print("{}\n", fmt::join(made, " "));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
