// The weights of a Hugging Face folder, found by name: model.safetensors, the files that model.safetensors.index.json
// names, or pytorch_model.bin. safetensors files are mapped, not read, until a tensor is asked for.
//
// A checkpoint of the bare model ("embeddings.…") fits a model with a head ("bert.embeddings.…") and the other way
// round; old names (LayerNorm.gamma, LayerNorm.beta) are known. Which names found no partner is in the report.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::storage {
class SafetensorsFile;
}

namespace tessera::models {

class PretrainedWeights {
 public:
  // `base_prefix`: what the bare model is called inside the full one, e.g. "bert.". ErrorKind::kData when the folder
  // has no weights or a file is damaged; the file is named.
  PretrainedWeights(const std::string& folder, std::string base_prefix);
  ~PretrainedWeights();

  // Copies the tensor of that name into `value`, converting its dtype; false when the folder has none.
  // ErrorKind::kData when its shape differs.
  bool fill(const std::string& name, at::Tensor value) const;

  bool contains(const std::string& name) const { return find(name) != nullptr; }

  // Every tensor's name and shape. Nothing of safetensors files is read but their headers.
  std::map<std::string, std::vector<int64_t>> shapes() const;

  // Names in the folder that none of `names` uses.
  std::vector<std::string> unexpected(const std::vector<std::string>& names) const;

 private:
  struct Source;
  const std::pair<const std::string, Source>* find(const std::string& name) const;
  void read_safetensors(const std::string& path);
  void read_index(const std::string& folder, const std::string& path);

  std::string base_prefix_;
  std::map<std::string, Source> sources_;
};

}  // namespace tessera::models
