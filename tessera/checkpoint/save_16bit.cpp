#include "tessera/checkpoint/save_16bit.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <functional>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/storage/safetensors.h"
#include "tessera/storage/state_dict_writer.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

namespace {

bool is_written(const zero::Unit& unit, bool exclude_frozen) { return unit.trainable() || !exclude_frozen; }

// One of the two writers behind what is common to them.
class WeightsFile {
 public:
  WeightsFile(const zero::ShardedModel& model, const fs::path& path, bool exclude_frozen) : model_(model) {
    if (path.extension() == ".bin") {
      state_dict_ = std::make_unique<storage::StateDictWriter>(path.string());
      return;
    }
    std::vector<storage::PlannedTensor> plan;
    for (const auto& unit : model.units()) {
      if (!is_written(*unit, exclude_frozen)) continue;
      for (const layout::FlatParam& param : unit->layout().params()) {
        plan.push_back({param.name, unit->compute().dtype(), param.shape});
      }
    }
    safetensors_ = std::make_unique<storage::SafetensorsWriter>(path.string(), std::move(plan),
                                                                std::map<std::string, std::string>{{"format", "pt"}});
  }

  void add(const std::string& name, const at::Tensor& tensor) {
    if (safetensors_) return safetensors_->add(tensor);
    state_dict_->add(name, tensor);
    for (const zero::ParamAlias& alias : model_.aliases()) {
      if (alias.canonical == name) state_dict_->add_alias(alias.name, name);
    }
  }

  void finish() {
    if (safetensors_) {
      safetensors_->finish();
    } else {
      state_dict_->finish();
    }
  }

 private:
  const zero::ShardedModel& model_;
  std::unique_ptr<storage::SafetensorsWriter> safetensors_;
  std::unique_ptr<storage::StateDictWriter> state_dict_;
};

}  // namespace

void save_16bit_weights(const zero::ShardedModel& model, const fs::path& file, bool exclude_frozen) {
  const at::NoGradGuard no_grad;
  comm::Group& world = model.world();
  if (file.extension() != ".bin" && file.extension() != ".safetensors") {
    throw Error(ErrorKind::kUsage, {fmt::format("the name ends with '{}'", file.extension().string()), file.string(),
                                    "end it with .safetensors or .bin"});
  }
  if (model.mesh().shape().holds_parts()) {
    throw Error(ErrorKind::kUsage,
                {"the model's weights alone cannot be saved yet where ranks hold different parts of it", file.string(),
                 "save a checkpoint, and export that"});
  }
  const fs::path aside = file.string() + ".saving";
  std::unique_ptr<WeightsFile> out;
  std::string failure;
  // A failure must not keep this rank from the gathers that the others wait for.
  const auto attempt = [&](const std::function<void()>& work) {
    if (world.rank() != 0 || !failure.empty()) return;
    try {
      work();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  attempt([&] {
    fs::create_directories(fs::absolute(file).parent_path());
    out = std::make_unique<WeightsFile>(model, aside, exclude_frozen);
  });
  for (const auto& unit : model.units()) {
    if (!is_written(*unit, exclude_frozen)) continue;
    if (unit->state() == zero::UnitState::kGathered && !unit->has(zero::Unit::Values::kStored)) unit->release();
    const bool gathers = unit->state() == zero::UnitState::kSharded;
    if (gathers) {
      unit->start_gather(zero::Unit::Values::kStored);
      unit->finish_gather();
    }
    attempt([&] {
      for (const zero::NamedParam& param : unit->params()) out->add(param.name(), param.tensor);
    });
    if (gathers) unit->release();
  }
  attempt([&] {
    out->finish();
    fs::rename(aside, file);
  });
  std::error_code ignored;
  if (!failure.empty()) fs::remove(aside, ignored);
  const std::string told = world.exchange_texts(failure, "saving the weights").front();
  if (!told.empty()) throw Error(ErrorKind::kMachine, {told, file.string(), ""});
}

}  // namespace tessera::checkpoint
