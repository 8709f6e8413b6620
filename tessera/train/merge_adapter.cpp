#include "tessera/train/merge_adapter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/models/adapters.h"
#include "tessera/nn/lora.h"
#include "tessera/storage/peft_format.h"
#include "tessera/storage/safetensors.h"

namespace tessera::train {
namespace {

class Merger {
 public:
  Merger(const std::string& model, const std::string& adapter)
      : adapter_(models::read_peft_folder(adapter)),
        deltas_(adapter + "/" + storage::kAdapterWeights),
        found_(models::read_model(model, "CausalLM", "tessera checkpoint merge merges")),
        weights_(model, found_.model->base_prefix()),
        shapes_(weights_.shapes()) {
    for (const auto& item : found_.model->network()->named_modules()) {
      const auto* const layer = dynamic_cast<const nn::Adaptable*>(item.value().get());
      if (layer != nullptr && layer->is_transposed()) transposed_.insert(item.key());
    }
    for (const auto& [name, entry] : deltas_.entries()) unused_.insert(name);
    for (const auto& [name, shape] : shapes_) is_bare_ = is_bare_ && !name.starts_with(found_.model->base_prefix());
  }

  const std::map<std::string, std::vector<int64_t>>& shapes() const { return shapes_; }

  at::Tensor merged(const std::string& name, at::ScalarType dtype) {
    const at::NoGradGuard no_grad;
    const std::string full = adapted_name(name);
    const at::Tensor value = at::empty(shapes_.at(name), at::kFloat);
    if (const auto whole = take(full)) {  // of a module that was trained whole
      value.copy_(*whole);
      return value.to(dtype);
    }
    weights_.fill(name, value);
    const std::string module =
        full.ends_with(".weight") ? full.substr(0, full.size() - std::string(".weight").size()) : "";
    const auto a = take(module + ".lora_A.weight"), b = take(module + ".lora_B.weight");
    if (!a || !b) return value.to(dtype);
    const at::Tensor rows = transposed_.contains(module) ? value.t() : value;  // (out, in)
    at::Tensor factors;
    if (adapter_.options.lora.dora) factors = row_factors(module, rows, *a, *b);
    rows.add_(at::mm(b->to(at::kFloat), a->to(at::kFloat)) * adapter_.options.lora.scale());
    if (factors.defined()) rows.mul_(factors.unsqueeze(1));
    return value.to(dtype);
  }

  void require_all_used(const std::string& adapter) const {
    if (unused_.empty()) return;
    throw Error(ErrorKind::kData, {fmt::format("the adapter has '{}', and the model no such weight", *unused_.begin()),
                                   adapter, "name the model that it was trained for"});
  }

 private:
  // By which DoRA's sum becomes the weight.
  at::Tensor row_factors(const std::string& module, const at::Tensor& weight, const at::Tensor& a,
                         const at::Tensor& b) {
    const auto magnitude = take(module + "." + nn::kLoraMagnitude);
    if (!magnitude) {
      throw Error(ErrorKind::kData, {fmt::format("the adapter has no magnitude of '{}'", module), deltas_.path(),
                                     "check the file, or get it again"});
    }
    return magnitude->to(at::kFloat) / nn::adapted_row_norms(weight, a, b, adapter_.options.lora.scale());
  }

  // A bare model's weights lack the prefix by which the adapter knows them.
  std::string adapted_name(const std::string& name) const {
    return is_bare_ ? found_.model->base_prefix() + name : name;
  }

  std::optional<at::Tensor> take(const std::string& name) {
    const std::string stored = storage::kAdapterPrefix + name;
    if (!deltas_.contains(stored)) return std::nullopt;
    unused_.erase(stored);
    return deltas_.tensor(stored);
  }

  models::PeftFolder adapter_;
  storage::SafetensorsFile deltas_;
  models::FolderModel found_;
  models::PretrainedWeights weights_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  bool is_bare_ = true;  // no name begins with the model's prefix
  std::set<std::string> transposed_, unused_;
};

}  // namespace

void merge_adapter(const MergeInput& input) {
  const std::string model = input.model.empty() ? models::base_of(input.adapter) : input.model;
  Merger merger(model, input.adapter);
  size_t left = merger.shapes().size();
  checkpoint::export_weights({.model = model,
                              .output = input.output,
                              .shapes = merger.shapes(),
                              .dtype = input.dtype,
                              .read = [&](const std::string& name) {
                                at::Tensor value = merger.merged(name, input.dtype);
                                if (--left == 0)
                                  merger.require_all_used(input.adapter);  // before anything is published
                                return value;
                              }});
}

}  // namespace tessera::train
