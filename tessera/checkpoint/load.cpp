#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/tensor_source.h"
#include "tessera/storage/safetensors.h"

namespace tessera::checkpoint {
namespace {

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const std::vector<std::string> shown(names.begin(),
                                       names.begin() + static_cast<int64_t>(std::min(kShown, names.size())));
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

// The checkpoint must be of this model: the same names and shapes, and the optimizer's states.
void check_fits(const Manifest& manifest, const LoadInput& input, const std::string& path) {
  std::vector<std::string> missing, other_shape, without_state;
  std::set<std::string> known;
  for (const auto& unit : input.model.units()) {
    for (const zero::Placement& param : unit->layout().params()) {
      const auto found = manifest.tensors.find(param.name);
      if (found == manifest.tensors.end()) {
        missing.push_back(param.name);
        continue;
      }
      known.insert(param.name);
      if (found->second.shape != param.shape) {
        other_shape.push_back(fmt::format("{} ([{}] instead of [{}])", param.name, fmt::join(found->second.shape, ", "),
                                          fmt::join(param.shape, ", ")));
      }
      if (!unit->trainable()) continue;
      for (const std::string& state : input.optimizer_states) {
        const auto& kinds = found->second.kinds;
        if (std::find(kinds.begin(), kinds.end(), state) == kinds.end()) without_state.push_back(param.name);
      }
    }
  }
  std::vector<std::string> findings;
  if (!missing.empty()) findings.push_back(fmt::format("it lacks {}", some_of(missing)));
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!known.contains(name)) unexpected.push_back(name);
  }
  if (!unexpected.empty()) findings.push_back(fmt::format("the model lacks {}", some_of(unexpected)));
  if (!other_shape.empty()) findings.push_back(fmt::format("the shape differs of {}", some_of(other_shape)));
  if (!without_state.empty()) findings.push_back(fmt::format("no optimizer state of {}", some_of(without_state)));
  if (findings.empty()) return;
  throw Error(ErrorKind::kData, {fmt::format("the checkpoint is of another model: {}", fmt::join(findings, "; ")), path,
                                 "resume with the model and the optimizer that made it, or choose another output"});
}

void read_units(TensorSource& source, const Manifest& manifest, const LoadInput& input) {
  const at::NoGradGuard no_grad;
  for (const auto& unit : input.model.units()) {
    const auto& params = unit->layout().params();
    const zero::Range owned_range = unit->owned();
    for (const zero::Segment& segment : unit->layout().segments(owned_range)) {
      const std::string& name = params[segment.param].name;
      const auto part = [&](const at::Tensor& owned) {
        return owned.narrow(0, segment.offset - owned_range.begin, segment.numel);
      };
      source.read(name, kWeight, segment.first, part(unit->stored_weights()));
      if (!unit->trainable()) continue;
      for (size_t k = 0; k < input.optimizer_states.size(); ++k) {
        source.read(name, input.optimizer_states[k], segment.first, part(unit->optimizer_state()[k]));
      }
    }
    if (!unit->trainable()) continue;
    for (size_t index = 0; index < params.size(); ++index) {
      const StoredTensor& stored = manifest.tensors.at(params[index].name);
      unit->steps()[index] = stored.steps;
      for (size_t k = 0; k < input.optimizer_numbers.size(); ++k) {
        const auto number = stored.numbers.find(input.optimizer_numbers[k]);
        unit->numbers(index)[k] = number == stored.numbers.end() ? 0 : number->second;
      }
    }
  }
}

std::map<std::string, at::Tensor> read_rank_tensors(TensorSource& source, int rank) {
  std::map<std::string, at::Tensor> tensors;
  const storage::SafetensorsFile& file = source.file(static_cast<size_t>(rank));
  const std::string prefix = piece_name("rank", "");
  for (const auto& [name, entry] : file.entries()) {
    if (name.starts_with(prefix)) tensors[name.substr(prefix.size())] = file.tensor(name).clone();
  }
  return tensors;
}

LoadResult load_here(const LoadInput& input, const std::string& tag) {
  const std::filesystem::path path = input.folder / tag;
  const Manifest manifest = read_manifest(path);
  check_fits(manifest, input, path.string());
  TensorSource source(path, manifest);
  read_units(source, manifest, input);
  LoadResult result{
      .path = path.string(), .engine_state = manifest.engine_state, .client_state = manifest.client_state};
  comm::Communicator& world = input.model.world();
  if (manifest.world_size == world.size()) result.rank_tensors = read_rank_tensors(source, world.rank());
  return result;
}

}  // namespace

std::optional<LoadResult> load(const LoadInput& input) {
  comm::Communicator& world = input.model.world();
  std::optional<LoadResult> result;
  std::string failure;
  try {
    const std::string tag = input.tag.empty() ? read_latest(input.folder) : input.tag;
    if (!tag.empty()) result = load_here(input, tag);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const auto failures = world.exchange_texts(failure, "load of a checkpoint");
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (failures[rank].empty()) continue;
    throw Error(ErrorKind::kData, {failures[rank], "", ""});
  }
  return result;
}

}  // namespace tessera::checkpoint
