#include "tessera/checkpoint/reader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

CheckpointReader::CheckpointReader(const std::filesystem::path& path)
    : folder_(resolve(path)), manifest_(read_manifest(folder_)), source_(folder_, manifest_) {}

at::Tensor CheckpointReader::tensor(const std::string& name, const std::string& kind) {
  const at::NoGradGuard no_grad;
  const auto found = manifest_.tensors.find(name);
  if (found == manifest_.tensors.end()) {
    throw Error(ErrorKind::kUsage, {fmt::format("the checkpoint has no '{}'", name), folder_.string(),
                                    "use a name that tessera checkpoint show lists"});
  }
  const at::Tensor flat = at::empty({found->second.numel()}, source_.dtype(name, kind));
  source_.read(name, kind, 0, flat);
  return flat.view(found->second.shape);
}

std::vector<std::string> CheckpointReader::names_as_written(bool trained) {
  const auto& tensors = manifest_.tensors;
  const auto has_states = [](const auto& entry) { return entry.second.kinds.size() > 1; };
  const bool keeps_states = std::any_of(tensors.begin(), tensors.end(), has_states);
  std::vector<std::pair<TensorSource::Place, std::string>> places;
  for (const auto& entry : tensors) {
    const bool is_trained = entry.second.numel() > 0 && (has_states(entry) || !keeps_states);
    if (!trained || is_trained) places.emplace_back(source_.place(entry.first, kWeight), entry.first);
  }
  std::sort(places.begin(), places.end());
  std::vector<std::string> names;
  for (auto& [place, name] : places) names.push_back(std::move(name));
  return names;
}

}  // namespace tessera::checkpoint
