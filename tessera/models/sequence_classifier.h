// Models that give a text, or a pair of texts, one of several labels, as transformers' …ForSequenceClassification does
// where problem_type is single_label_classification. Regression and several labels a row are refused by name.
//
// The names of the labels stand in config.json: "id2label", {"0": "negative", "1": "positive"}, and its inverse,
// "label2id". A label's number is its place in the list of names.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/models/model.h"

namespace tessera::models {

inline constexpr const char* kClassifierHead = "SequenceClassification";  // ModelClass::head

// The names that config.json has, in the order of their numbers; LABEL_0, LABEL_1, … where it says only how many there
// are; nothing where it says neither. ErrorKind::kData where they are not numbered from 0 without a gap, two are the
// same, or it asks for another kind of problem.
std::vector<std::string> labels_in(const ModelConfig& config);

// Whether these are the names that transformers gives labels without names.
bool are_placeholders(const std::vector<std::string>& labels);

// Whether the folder's model is a classifier already, whose head has one output for each of its labels.
bool is_classifier(const ModelConfig& config);

// What config.json says of such labels.
nlohmann::ordered_json config_of_labels(const std::vector<std::string>& labels);

// The cross entropy of logits (rows, labels) to the labels (rows) int64, added up over rows whose label is not -100: a
// scalar in fp32.
at::Tensor label_loss_sum(const at::Tensor& logits, const at::Tensor& labels);

class SequenceClassifier : public Network {
 public:
  // Reads "input_ids" and, where they are there, "attention_mask" and "token_type_ids", (rows, length).
  virtual at::Tensor logits(const NamedTensors& batch) = 0;  // (rows, labels)

  // The same and "labels" (rows).
  at::Tensor loss_sum(const NamedTensors& batch) override { return outputs(batch).front(); }

  // The loss and the logits.
  std::vector<at::Tensor> outputs(const NamedTensors& batch) override { return outputs_of(logits(batch), batch); }

 protected:
  static std::vector<at::Tensor> outputs_of(const at::Tensor& logits, const NamedTensors& batch) {
    return {label_loss_sum(logits, batch.at("labels")), logits};
  }
};

}  // namespace tessera::models
