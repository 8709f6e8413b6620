#include "tessera/engine/nvme_activations.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tests/support/live_bytes.h"
#include "tests/support/temporary_folder.h"

namespace tessera::engine::nvme_activations_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kLayers = 12;
constexpr int64_t kRows = 256, kColumns = 64;
constexpr int64_t kInputBytes = kRows * kColumns * 4;

at::Tensor wave(std::vector<int64_t> shape, double step) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return at::sin(at::arange(numel, at::kFloat) * step + 0.1).view(shape);
}

struct Result {
  std::vector<at::Tensor> tensors;  // loss and gradients
  int64_t after_forward = 0;        // bytes that wait for backward
  int64_t peak = 0;
};

// Layers with dropout, each an activation checkpoint.
Result train(const std::shared_ptr<nn::ActivationStore>& store, int backwards = 1) {
  const nn::ActivationStore::Scope scope(store);
  const at::Tensor x = wave({kRows, kColumns}, 0.1).requires_grad_(true);
  const at::Tensor w = wave({kColumns, kColumns}, 0.2).requires_grad_(true);
  const auto bytes = std::make_shared<test::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  at::manual_seed(5);
  Result result;
  {
    at::Tensor y = x;
    for (int i = 0; i < kLayers; ++i) {
      const auto layer = [w](const at::Tensor& in) {
        return at::tanh(at::dropout(at::sigmoid(at::matmul(in, w)), 0.3, /*train=*/true)) + in;
      };
      y = nn::checkpoint(layer, y);
    }
    const at::Tensor loss = y.sum();
    y = at::Tensor();
    result.after_forward = bytes->live;
    for (int i = 1; i <= backwards; ++i) loss.backward({}, /*retain_graph=*/i < backwards);
    result.tensors = {loss.detach()};
  }
  result.peak = bytes->peak;
  result.tensors.insert(result.tensors.end(), {x.grad(), w.grad()});
  return result;
}

std::shared_ptr<nn::ActivationStore> in_memory() {
  return std::make_shared<nn::ActivationStore>(nn::ActivationStoreOptions{});
}

std::shared_ptr<nn::ActivationStore> in_file(const std::string& folder, const storage::IoOptions& io = {}) {
  return std::make_shared<nn::ActivationStore>(
      nn::ActivationStoreOptions{.in_host_memory = true, .file = std::make_shared<NvmeActivations>(folder, io)});
}

void expect_same_bits(const Result& got, const Result& want) {
  for (size_t i = 0; i < want.tensors.size(); ++i) EXPECT_TRUE(at::equal(got.tensors[i], want.tensors[i])) << i;
}

TEST(NvmeActivations, GiveBackTheBitsThatTheyTook) {
  const test::TemporaryFolder folder;
  const Result want = train(in_memory());
  for (const storage::IoOptions& io : {storage::IoOptions{}, {.block_bytes = 4096, .depth = 2, .threads = 2}}) {
    const auto store = in_file(folder.path(), io);
    for (int step = 0; step < 3; ++step) expect_same_bits(train(store), want);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(NvmeActivations, ServeEveryBackwardOverARetainedGraph) {
  const test::TemporaryFolder folder;
  expect_same_bits(train(in_file(folder.path()), 3), train(in_memory(), 3));
}

// Without a file each layer's input waits in memory, the first of which is the leaf x; with one only the random states
// (5 kB each) do. Backward then needs some tensors of one layer.
TEST(NvmeActivations, TakeTheInputsOutOfMemory) {
  constexpr int64_t kSlack = 100 * 1024;
  const test::TemporaryFolder folder;
  const Result memory = train(in_memory()), file = train(in_file(folder.path()));
  EXPECT_GE(memory.after_forward, (kLayers - 1) * kInputBytes);
  EXPECT_LE(file.after_forward, kSlack);
  EXPECT_LE(file.peak, memory.peak - (kLayers - 3) * kInputBytes);
}

TEST(NvmeActivations, KeepTensorsOfAnyLayoutAndLeaveSmallOnesInMemory) {
  const test::TemporaryFolder folder;
  const auto store = in_file(folder.path());
  const at::Tensor turned = wave({50, 60}, 0.3).t(), odd = wave({1025}, 0.2).to(at::kBFloat16);
  const at::Tensor large = wave({4097}, 0.1), small = wave({3}, 0.4), ids = at::arange(5000);
  std::vector<nn::KeptTensor> kept;
  const std::vector<at::Tensor> all = {turned, odd, large, small, ids, at::Tensor()};
  for (const at::Tensor& tensor : all) kept.push_back(store->keep(0, tensor));
  for (const size_t i : {2U, 0U, 5U, 4U, 1U, 3U, 2U}) {
    const at::Tensor back = kept[i].restore();
    ASSERT_EQ(back.defined(), all[i].defined());
    if (!back.defined()) continue;
    EXPECT_TRUE(at::equal(back, all[i])) << i;
    EXPECT_EQ(back.strides(), all[i].strides()) << i;
  }
}

TEST(NvmeActivations, NameTheKeyOfAFolderThatIsNotThere) {
  try {
    NvmeActivations("/nowhere/at/all", {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMachine);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("activation_checkpointing.nvme_path: /nowhere/at/all"),
                                    HasSubstr("No such file"), HasSubstr("name a folder that exists and is writable")));
  }
}

}  // namespace
}  // namespace tessera::engine::nvme_activations_test
