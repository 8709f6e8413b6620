#include "tessera/models/sequence_classifier.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/nn/target_loss.h"

namespace tessera::models {
namespace {

constexpr int64_t kMostLabels = 100'000;

std::string placeholder(size_t number) { return fmt::format("LABEL_{}", number); }

[[noreturn]] void refuse_labels(const std::string& what, const ModelConfig& config) {
  throw Error(ErrorKind::kData, {what, config.path, "check the file, or get it again"});
}

std::vector<std::string> named_labels(const nlohmann::json& id2label, const ModelConfig& config) {
  std::vector<std::string> labels(id2label.size());
  std::set<std::string> seen;
  for (size_t number = 0; number < labels.size(); ++number) {
    const auto found = id2label.find(std::to_string(number));
    if (found == id2label.end() || !found->is_string())
      refuse_labels(fmt::format("id2label has no name for label {} of {}", number, labels.size()), config);
    labels[number] = found->get<std::string>();
    if (!seen.insert(labels[number]).second)
      refuse_labels(fmt::format("id2label has the name '{:.100}' twice", labels[number]), config);
  }
  return labels;
}

}  // namespace

std::vector<std::string> labels_in(const ModelConfig& config) {
  const auto problem =
      json_value(config.values, "problem_type", std::string("single_label_classification"), config.path);
  if (problem != "single_label_classification") {
    throw Error(ErrorKind::kData, {fmt::format("problem_type is {:.100}, which is not supported", problem), config.path,
                                   "use a model of single_label_classification: one label a row"});
  }
  std::vector<std::string> labels;
  const auto id2label = config.values.find("id2label");
  if (id2label != config.values.end() && id2label->is_object() && !id2label->empty()) {
    labels = named_labels(*id2label, config);
  } else {
    const int64_t otherwise = is_classifier(config) ? 2 : 0;  // transformers notes nothing of two labels without names
    const auto count = json_value<int64_t>(config.values, "num_labels", otherwise, config.path);
    if (count < 0 || count > kMostLabels) refuse_labels(fmt::format("num_labels is {}", count), config);
    for (int64_t number = 0; number < count; ++number) labels.push_back(placeholder(static_cast<size_t>(number)));
  }
  if (labels.size() == 1) {
    throw Error(ErrorKind::kData, {"the model has one label: it predicts a number, which is not supported", config.path,
                                   "use a model of single_label_classification, or one without a head"});
  }
  return labels;
}

bool are_placeholders(const std::vector<std::string>& labels) {
  for (size_t number = 0; number < labels.size(); ++number) {
    if (labels[number] != placeholder(number)) return false;
  }
  return true;
}

bool is_classifier(const ModelConfig& config) {
  const auto names = config.values.find("architectures");
  if (names == config.values.end() || !names->is_array()) return false;
  return std::any_of(names->begin(), names->end(), [](const auto& name) {
    return name.is_string() &&
           name.template get_ref<const std::string&>().ends_with(std::string("For") + kClassifierHead);
  });
}

nlohmann::ordered_json config_of_labels(const std::vector<std::string>& labels) {
  nlohmann::ordered_json names = nlohmann::ordered_json::object(), numbers = nlohmann::ordered_json::object();
  for (size_t number = 0; number < labels.size(); ++number) {
    names[std::to_string(number)] = labels[number];
    numbers[labels[number]] = number;
  }
  return {{"id2label", names},
          {"label2id", numbers},
          {"num_labels", labels.size()},
          {"problem_type", "single_label_classification"}};
}

at::Tensor label_loss_sum(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.to(at::kFloat), labels, /*weight=*/{}, at::Reduction::Sum, nn::kNoTarget);
}

}  // namespace tessera::models
