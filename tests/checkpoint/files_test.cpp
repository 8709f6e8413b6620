// Checkpoints that are read and written without an engine, tensor by tensor. What is written is what a save of one rank
// writes, so an engine loads it; expected values are those that were given.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/checkpoint/inspect.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/writer.h"
#include "tessera/storage/atomic_dir.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint::files_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Element i of a tensor is i + `first`: exact in every dtype here.
at::Tensor counted(std::vector<int64_t> shape, at::ScalarType dtype, int64_t first) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return at::arange(first, first + numel, at::TensorOptions().dtype(dtype)).view(shape);
}

class CheckpointFiles : public testing::Test {
 protected:
  CheckpointFiles() {
    made_.folder = folder_.path() / "run";
    made_.facts.tag = "global_step7";
    made_.facts.engine_state = {{"global_steps", 7}};
    made_.facts.client_state = {{"note", "hello"}};
    made_.facts.aliases = {{"head.weight", "z.weight"}};
    made_.tensors = {{"z.weight", {3, 4}, {{kWeight, at::kFloat}, {"exp_avg", at::kFloat}}, 5},
                     {"a.scale", {2}, {{kWeight, at::kBFloat16}}, 0},
                     {"m.none", {0, 4}, {{kWeight, at::kFloat}}, 0}};
  }

  at::Tensor given(const std::string& name, const std::string& kind) {
    asked_.push_back(kind + "/" + name);
    if (name == "a.scale") return counted({2}, at::kBFloat16, 100);
    return counted({3, 4}, at::kFloat, kind == kWeight ? 0 : 50).t().contiguous().t();  // any strides
  }

  fs::path write() {
    return write_checkpoint(made_, [this](const auto& name, const auto& kind) { return given(name, kind); });
  }

  ErrorReport refused(ErrorKind kind, const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      return error.report();
    }
    ADD_FAILURE() << "did not throw";
    return {};
  }

  test::TemporaryFolder folder_;
  WholeCheckpoint made_;
  std::vector<std::string> asked_;
};

TEST_F(CheckpointFiles, AreReadAsTheyWereWritten) {
  EXPECT_EQ(write(), made_.folder / "global_step7");
  EXPECT_THAT(asked_, ElementsAre("weight/z.weight", "weight/a.scale", "exp_avg/z.weight"));
  CheckpointReader reader(made_.folder);  // by `latest`
  EXPECT_THAT(verify(reader.folder()), IsEmpty());
  EXPECT_TRUE(at::equal(reader.tensor("z.weight", kWeight), counted({3, 4}, at::kFloat, 0)));
  EXPECT_TRUE(at::equal(reader.tensor("z.weight", "exp_avg"), counted({3, 4}, at::kFloat, 50)));
  EXPECT_TRUE(at::equal(reader.tensor("a.scale", kWeight), counted({2}, at::kBFloat16, 100)));
  EXPECT_EQ(reader.tensor("m.none", kWeight).sizes(), at::IntArrayRef({0, 4}));
  const Manifest& manifest = reader.manifest();
  EXPECT_EQ(manifest.tag, "global_step7");
  EXPECT_EQ(manifest.world_size, 1);
  EXPECT_EQ(manifest.engine_state, made_.facts.engine_state);
  EXPECT_EQ(manifest.client_state, made_.facts.client_state);
  EXPECT_EQ(manifest.aliases, made_.facts.aliases);
  EXPECT_EQ(manifest.tensors.at("z.weight").steps, 5);
}

TEST_F(CheckpointFiles, TellTheOrderInWhichTheyWereWritten) {
  write();
  CheckpointReader reader(made_.folder);
  EXPECT_THAT(reader.names_as_written(/*trained=*/false), ElementsAre("m.none", "z.weight", "a.scale"));
  EXPECT_THAT(reader.names_as_written(/*trained=*/true), ElementsAre("z.weight"));
}

TEST_F(CheckpointFiles, WithoutStatesAreTrainedAsAWhole) {
  made_.tensors[0].kinds.pop_back();
  write();
  EXPECT_THAT(CheckpointReader(made_.folder).names_as_written(/*trained=*/true), ElementsAre("z.weight", "a.scale"));
}

// Rows and halves that several ranks wrote, at every stage, come out whole.
TEST_F(CheckpointFiles, OfSeveralRanksAreReadWhole) {
  const fs::path saved = folder_.path() / "saved";
  test::spawn_ranks(3, [&](const std::shared_ptr<comm::Group>& world) {
    const auto engine = initialize(std::make_shared<test::Frozen>(), test::config_of(3, 3), {.world = world});
    test::take_steps(*engine, 2);
    engine->save_checkpoint(saved.string());
    const std::vector<at::Tensor> weights = test::weights_of(*engine);
    if (world->rank() != 0) return;
    CheckpointReader reader(saved);
    size_t index = 0;
    for (const auto& item : engine->module().named_parameters()) {
      const at::Tensor stored = reader.tensor(item.key(), kWeight);
      EXPECT_TRUE(at::equal(stored, weights[index++])) << item.key();
    }
    EXPECT_EQ(index, reader.manifest().tensors.size());
  });
}

TEST_F(CheckpointFiles, AreNotThereAtAllAfterAnError) {
  EXPECT_THROW(write_checkpoint(made_, [](const auto&, const auto&) -> at::Tensor { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_FALSE(fs::exists(made_.folder / "global_step7"));
  EXPECT_FALSE(fs::exists(made_.folder / "global_step7.saving"));
  EXPECT_FALSE(fs::exists(made_.folder / "latest"));
}

TEST_F(CheckpointFiles, OfTensorsThatAreNotAsAnnouncedAreRefused) {
  made_.tensors[1].shape = {3};
  const ErrorReport report = refused(ErrorKind::kData, [this] { write(); });
  EXPECT_THAT(report.what, HasSubstr("'weight' of 'a.scale'"));
  EXPECT_FALSE(fs::exists(made_.folder / "global_step7.saving"));
  made_.tensors[1].shape = {-2};
  EXPECT_THAT(refused(ErrorKind::kData, [this] { write(); }).what, HasSubstr("its shape is impossible"));
  made_.tensors[1] = made_.tensors[0];
  EXPECT_THAT(refused(ErrorKind::kData, [this] { write(); }).what, HasSubstr("two tensors named 'z.weight'"));
}

TEST_F(CheckpointFiles, DoNotReplaceOthers) {
  write();
  const std::string before = read_input_file(made_.folder / "global_step7" / "manifest.json");
  made_.tensors.pop_back();
  EXPECT_THAT(refused(ErrorKind::kUsage, [this] { write(); }).what, HasSubstr("already"));
  EXPECT_EQ(read_input_file(made_.folder / "global_step7" / "manifest.json"), before);
}

TEST_F(CheckpointFiles, StayInTheirFolder) {
  made_.facts.tag = "../elsewhere";
  refused(ErrorKind::kUsage, [this] { write(); });
  made_.facts.tag = "global_step7";
  write();
  std::ofstream(made_.folder / "latest") << "../run/global_step7\n";
  EXPECT_THAT(refused(ErrorKind::kData, [this] { CheckpointReader reader(made_.folder); }).what,
              HasSubstr("'../run/global_step7' is not the name of a checkpoint"));
  Manifest manifest = read_manifest(made_.folder / "global_step7");
  fs::copy(made_.folder / "global_step7" / manifest.files[0].name, made_.folder / "outside");
  manifest.files[0].name = "../outside";
  storage::write_file_atomically(made_.folder / "global_step7" / "manifest.json", to_text(manifest));
  EXPECT_THAT(refused(ErrorKind::kData, [this] { read_manifest(made_.folder / "global_step7"); }).what,
              HasSubstr("'../outside' is not the name of a shard file"));
}

}  // namespace
}  // namespace tessera::checkpoint::files_test
