#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/storage/atomic_dir.h"
#include "tessera/storage/safetensors.h"

namespace tessera::checkpoint {
namespace {

using storage::PlannedTensor;

std::string shard_name(int rank, int world_size) {
  return fmt::format("shard-{:05}-of-{:05}.safetensors", rank, world_size);
}

std::vector<std::string> kinds_of(const zero::Unit& unit, const std::vector<std::string>& optimizer_states) {
  std::vector<std::string> kinds{kWeight};
  if (unit.trainable()) kinds.insert(kinds.end(), optimizer_states.begin(), optimizer_states.end());
  return kinds;
}

at::Tensor stored(const zero::Unit& unit, size_t kind) {
  return kind == 0 ? unit.stored_weights() : unit.optimizer_state()[kind - 1];
}

void write_shard(const SaveInput& input, const std::filesystem::path& path) {
  const int rank = input.model.world().rank();
  std::vector<PlannedTensor> plan;
  std::vector<at::Tensor> tensors;
  for (const auto& unit : input.model.units()) {
    const auto kinds = kinds_of(*unit, input.optimizer_states);
    for (const zero::Segment& segment : unit->layout().segments(unit->layout().slice(rank))) {
      for (size_t kind = 0; kind < kinds.size(); ++kind) {
        const at::Tensor owned = stored(*unit, kind);
        tensors.push_back(owned.narrow(0, segment.offset - unit->owned().begin, segment.numel));
        plan.push_back({piece_name(kinds[kind], unit->layout().params()[segment.param].name),
                        owned.scalar_type(),
                        {segment.numel}});
      }
    }
  }
  for (const auto& [name, tensor] : input.rank_tensors) {
    tensors.push_back(tensor);
    plan.push_back({piece_name("rank", name), tensor.scalar_type(), tensor.sizes().vec()});
  }
  storage::SafetensorsWriter writer(path.string(), std::move(plan));
  for (const at::Tensor& tensor : tensors) writer.add(tensor);
  writer.finish();
}

Manifest make_manifest(const SaveInput& input, const std::filesystem::path& aside) {
  const int world_size = input.model.world().size();
  Manifest manifest{.tag = input.tag, .world_size = world_size};
  manifest.engine_state = input.engine_state;
  manifest.client_state = input.client_state;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::string name = shard_name(rank, world_size);
    manifest.files.push_back({name, std::filesystem::file_size(aside / name)});
  }
  for (const zero::ParamAlias& alias : input.model.aliases()) manifest.aliases[alias.name] = alias.canonical;
  for (const auto& unit : input.model.units()) {
    const auto& params = unit->layout().params();
    for (size_t index = 0; index < params.size(); ++index) {
      manifest.tensors[params[index].name] = {.shape = params[index].shape,
                                              .kinds = kinds_of(*unit, input.optimizer_states),
                                              .steps = unit->trainable() ? unit->steps()[index] : 0,
                                              .pieces = {}};
      if (!unit->trainable()) continue;
      for (size_t k = 0; k < input.optimizer_numbers.size(); ++k) {
        manifest.tensors[params[index].name].numbers[input.optimizer_numbers[k]] = unit->numbers(index)[k];
      }
    }
    for (int rank = 0; rank < world_size; ++rank) {
      for (const zero::Segment& segment : unit->layout().segments(unit->layout().slice(rank))) {
        manifest.tensors[params[segment.param].name].pieces.push_back(
            {static_cast<size_t>(rank), segment.first, segment.numel});
      }
    }
  }
  return manifest;
}

// What `work` threw, as text; empty when it went well. std::bad_alloc and the like count too: no rank may be left
// waiting.
template <class Work>
std::string outcome_of(Work work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Collective: throws on every rank when any of them failed.
void agree(const SaveInput& input, const std::string& outcome, const std::string& label) {
  const auto outcomes = input.model.world().exchange_texts(outcome, label);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].empty()) continue;
    if (input.model.world().rank() == 0) storage::abandon(input.folder / input.tag);
    throw Error(ErrorKind::kMachine,
                {fmt::format("the checkpoint '{}' could not be saved (rank {}): {}", input.tag, rank, outcomes[rank]),
                 input.folder.string(), "earlier checkpoints of this folder are as they were"});
  }
}

}  // namespace

std::string save(const SaveInput& input) {
  if (input.folder.empty()) {
    throw Error(ErrorKind::kUsage, {"the folder to save to is empty", "save_checkpoint", "name a folder"});
  }
  const int rank = input.model.world().rank();
  const std::filesystem::path final_folder = input.folder / input.tag;
  const std::filesystem::path aside = storage::aside_of(final_folder);
  const std::string label = "save of " + input.tag;

  agree(input, rank == 0 ? outcome_of([&] { storage::create_aside(final_folder); }) : "", label);
  agree(input, outcome_of([&] { write_shard(input, aside / shard_name(rank, input.model.world().size())); }), label);
  agree(input,
        rank == 0 ? outcome_of([&] {
          const Manifest manifest = make_manifest(input, aside);
          storage::write_file_atomically(aside / "manifest.json", to_text(manifest));
          storage::publish(final_folder);
          storage::write_file_atomically(input.folder / "latest", input.tag + "\n");
          uint64_t bytes = 0;
          for (const ShardFile& file : manifest.files) bytes += file.bytes;
          log_info("saved {} ({})", final_folder.string(), format_bytes(bytes));
        })
                  : "",
        label);
  return final_folder.string();
}

}  // namespace tessera::checkpoint
