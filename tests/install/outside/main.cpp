// A project of its own that trains a model of its own: y = w x towards y = 3 x, which only a real step can reach.
#include <tessera/tessera.h>

#include <cstdio>

struct Slope : tessera::nn::UnitModule<Slope> {
  Slope() { weight = register_parameter("weight", at::zeros({1})); }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};

int main() {
  const nlohmann::json json = {{"train_micro_batch_size_per_gpu", 1},
                               {"zero_optimization", {{"stage", 3}}},
                               {"optimizer", {{"type", "Adam"}, {"params", {{"lr", 0.1}}}}}};
  const auto model = std::make_shared<Slope>();
  const auto engine = tessera::initialize(model, json);
  const at::Tensor x = at::arange(1, 5, at::kFloat);
  for (int step = 0; step < 200; ++step) {
    engine->backward((engine->forward(x) - 3 * x).square().mean());
    engine->step();
  }
  const tessera::Gathered whole(*engine);
  std::printf("%.3f\n", model->weight.item<float>());
}
