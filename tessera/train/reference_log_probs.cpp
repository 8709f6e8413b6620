#include "tessera/train/reference_log_probs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/own_sum.h"
#include "tessera/comm/agreement.h"
#include "tessera/models/causal_network.h"
#include "tessera/train/run.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kReferenceFormat = "tessera-reference";

int64_t pairs_in(const ReferenceInput& input) {
  int64_t pairs = 0;
  for (const auto& samples : input.data) pairs += static_cast<int64_t>(samples.size);
  return pairs;
}

class ReferenceFile {
 public:
  explicit ReferenceFile(const ReferenceInput& input) : input_(input), path_(input.output / "reference.json") {}

  bool is_there() const { return fs::exists(path_); }

  // `values`: (pairs, 2) in fp64.
  void read(const at::Tensor& values) const {
    constexpr uint64_t kMostOfNumber = 32;  // bytes
    const auto numbers = static_cast<uint64_t>(values.numel());
    const std::string text = read_input_file(path_, ErrorKind::kData, std::max(kMostText, numbers * kMostOfNumber));
    if (!checkpoint::has_own_sum(text)) refuse("the file does not match its checksum", kNewOne);
    const json found = parse_json(text, {.where = path_.string()});
    const auto named = [&](const char* key) { return json_value(found, key, std::string(), path_.string()); };
    if (named("format") != kReferenceFormat || json_value<int64_t>(found, "version", 0, path_.string()) != 1) {
      refuse("the file is of a format that this program does not know", kNewOne);
    }
    require_same("model", named("model"), input_.model);
    require_same("data", named("data"), input_.data_hash);
    const json list = found.value("log_probs", json());
    const bool fits = list.is_array() && list.size() == numbers &&
                      std::all_of(list.begin(), list.end(), [](const json& each) { return each.is_number(); });
    if (!fits) refuse("the file does not hold two numbers for each pair", kNewOne);
    std::transform(list.begin(), list.end(), values.mutable_data_ptr<double>(),
                   [](const json& each) { return each.get<double>(); });
  }

  void write(const at::Tensor& values) const {
    nlohmann::ordered_json text = {{"format", kReferenceFormat}, {"version", 1}, {"xxh3", checkpoint::kNoSum}};
    text["model"] = input_.model;
    text["data"] = input_.data_hash;
    const auto* const numbers = values.const_data_ptr<double>();
    text["log_probs"] = std::vector<double>(numbers, numbers + values.numel());
    std::error_code failed;
    fs::create_directories(input_.output, failed);
    if (failed) machine_refused("the output folder cannot be created", failed.value(), input_.output);
    write_file_atomically(path_, checkpoint::with_own_sum(text.dump(1) + "\n"));
  }

 private:
  static constexpr const char* kNewOne = "delete the file, to have it made again from the model's first weights";

  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const {
    throw Error(ErrorKind::kData, {what, path_.string(), fix});
  }

  void require_same(const char* what, const std::string& there, const std::string& here) const {
    if (there == here) return;
    refuse(fmt::format("the reference's log-probabilities were computed with {} {} than this run's",
                       std::string(what) == "data" ? "other" : "another", what),
           fmt::format("resume with the {} that the run began with, or {}", what, kNewOne));
  }

  const ReferenceInput& input_;
  fs::path path_;
};

// Those that this rank looks at; the rest stay as they are. As in an evaluation, every rank runs as many forwards.
void compute_own(const ReferenceInput& input, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  comm::Group& group = input.engine.data_group();
  const int64_t micro = input.engine.train_micro_batch_size_per_gpu();
  auto* const numbers = values.mutable_data_ptr<double>();
  input.engine.eval();
  for (const auto& samples : input.data) {
    const auto size = static_cast<int64_t>(samples.size);
    std::vector<size_t> own;
    for (int64_t i = group.rank(); i < size; i += group.size()) own.push_back(static_cast<size_t>(i));
    const int64_t per_rank = (size + group.size() - 1) / group.size();
    for (int64_t first = 0; first < per_rank; first += micro) {
      const int64_t left = static_cast<int64_t>(own.size()) - first;
      const std::span<const size_t> some =
          left > 0 ? std::span(own).subspan(first, std::min(micro, left)) : std::span(own).first(1);  // again
      const data::Batch batch = samples.collate(some, /*epoch=*/0);
      const at::Tensor found =
          answer_log_probs(input.engine, tensors_of(input.engine, batch)).to(at::kCPU, at::kDouble).contiguous();
      const auto* const log_probs = found.const_data_ptr<double>();
      if (left <= 0) continue;
      const auto& pairs = batch.arrays.at("pairs").values;
      for (size_t row = 0; row < pairs.size(); ++row) {
        numbers[2 * pairs[row]] = log_probs[row];
        numbers[2 * pairs[row] + 1] = log_probs[pairs.size() + row];
      }
    }
  }
  input.engine.train();
}

}  // namespace

at::Tensor answer_log_probs(NetworkEngine& engine, const models::NamedTensors& batch) {
  return engine.call(
      [](models::Network& network, const models::NamedTensors& inputs) {
        auto* const causal = dynamic_cast<models::CausalNetwork*>(&network);
        TESSERA_INVARIANT(causal != nullptr);
        return causal->log_probs(inputs);
      },
      batch);
}

at::Tensor reference_log_probs(const ReferenceInput& input) {
  comm::Group& group = input.engine.data_group();
  const bool speaks = group.rank() == 0;  // in each group of ranks that have the same part of the model
  const bool writes = input.engine.world().rank() == 0;
  const ReferenceFile file(input);
  const at::Tensor values = at::zeros({pairs_in(input), 2}, at::kDouble);
  bool found = false;
  comm::all_or_none(group, "the reference's log-probabilities", [&] {
    if (!speaks) return;
    if (!input.resumes) refuse_to_overwrite(input.output);
    found = input.resumes && file.is_there();
    if (found) file.read(values);
  });
  found = group.exchange_texts(found ? "found" : "", "the reference's log-probabilities").front() == "found";
  if (!found) {
    if (writes) log_info("the reference: log-probabilities of {}", count_of(values.size(0), "pair"));
    compute_own(input, values);
  }
  group.start_all_reduce(values.view({-1}), 1, "the reference's log-probabilities").finish();
  if (!at::isfinite(values).all().item<bool>()) {
    throw Error(ErrorKind::kData,
                {"the model that training begins with gives an answer a probability that is not finite",
                 input.output.string(), "look at the model's weights, or train in another precision"});
  }
  if (!found) {
    comm::all_or_none(input.engine.world(), "the reference's file", [&] {
      if (writes) file.write(values);
    });
  }
  return values.to(at::kFloat).to(input.engine.device());
}

}  // namespace tessera::train
