// What a step needs in memory is there from the step before: once the first steps are over, the system is asked for no
// page any more. Counted by the kernel (getrusage, minor faults).
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::page_faults_test {
namespace {

constexpr int64_t kWide = 1024;  // a block has 4 MiB of weights, which is 1024 pages
constexpr int kBlocks = 3, kSteps = 5;
constexpr int64_t kPagesOfTheModel = kBlocks * kWide * kWide * 4 / 4096;

class WideBlock : public nn::UnitModule<WideBlock> {
 public:
  WideBlock() { weight = register_parameter("weight", at::full({kWide, kWide}, 1e-3)); }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(at::matmul(x, weight)); }
  at::Tensor weight;
};

class WideModel : public torch::nn::Module {
 public:
  WideModel() {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<WideBlock>()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks) x = (*block)(x);
    return test::mean_square(x);
  }
  std::vector<std::shared_ptr<WideBlock>> blocks;
};

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

struct Case {
  int stage;
  const char* backend;
  bool bf16;
};

void PrintTo(const Case& value, std::ostream* out) {
  *out << "stage " << value.stage << ", " << value.backend << (value.bf16 ? ", bf16" : "");
}

class PageFaults : public testing::TestWithParam<Case> {};

TEST_P(PageFaults, AreOverAfterTheFirstSteps) {
  const Case& how = GetParam();
  test::spawn_ranks(2,
                    [&](std::shared_ptr<comm::Group> world) {
                      const auto engine = initialize(
                          std::make_shared<WideModel>(),
                          config::parse_ds_config({{"train_micro_batch_size_per_gpu", 8},
                                                   {"bf16", {{"enabled", how.bf16}}},
                                                   {"zero_optimization", {{"stage", how.stage}}},
                                                   {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}},
                                                  "the test", {.data_parallel_size = world->size()}),
                          {.world = world});
                      const auto step = [&] {
                        engine->backward(engine->forward(at::ones({8, kWide}, how.bf16 ? at::kBFloat16 : at::kFloat)));
                        engine->step();
                      };
                      for (int warm = 0; warm < 3; ++warm) step();
                      const int64_t before = page_faults();
                      for (int count = 0; count < kSteps; ++count) step();
                      EXPECT_LT(page_faults() - before, kPagesOfTheModel / 100);
                    },
                    {.backend = how.backend});
}

INSTANTIATE_TEST_SUITE_P(Stages, PageFaults,
                         testing::Values(Case{0, "shm", false}, Case{1, "shm", false}, Case{2, "shm", false},
                                         Case{3, "shm", false}, Case{3, "shm", true}, Case{2, "gloo", false},
                                         Case{3, "gloo", false}));

}  // namespace
}  // namespace tessera::page_faults_test
