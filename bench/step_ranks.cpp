// One rank of bench/training, bench/start and bench/gpu without Python: a BERT on random tokens, all of them predicted.
// The weights and the tokens are those of training_ranks.py with the same options.
//
//   step_ranks OPTIONS      with RANK, WORLD_SIZE, … as a launcher sets them
//
// OPTIONS is JSON: "model" (sizes by their names in config.json), "ds_config", "length", "device" (of LibTorch);
// optionally "predicted", the share of the tokens that are, and "trace", the file of a timeline of all but the first
// step. Without the launcher's variables it is a rank that communicates with nobody: the bound. Takes a step at once
// and one more for each of the number in a line on stdin, and answers with the seconds that the steps took, those of
// their optimizer's part, the last loss, and the most bytes so far on a device.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "tessera/base/allocator.h"
#include "tessera/comm/group.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tessera/models/bert.h"
#include "tessera/nn/target_loss.h"
#include "tessera/storage/cpu_allocator.h"
#include "tessera/storage/device.h"

using namespace tessera;
using nlohmann::json;

namespace {

models::BertConfig bert_config(const json& sizes) {
  return {.vocab_size = sizes["vocab_size"],
          .hidden_size = sizes["hidden_size"],
          .num_hidden_layers = sizes["num_hidden_layers"],
          .num_attention_heads = sizes["num_attention_heads"],
          .intermediate_size = sizes["intermediate_size"],
          .hidden_dropout_prob = 0,  // two frameworks would drop different elements
          .attention_probs_dropout_prob = 0};
}

int64_t peak_bytes_on(at::Device device) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return device.is_cpu() ? 0 : at::accelerator::getDeviceStats(device.index()).allocated_bytes.at(kAll).peak;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  keep_freed_memory();
  storage::use_reusing_cpu_allocator();
  const json options = json::parse(argv[1]);
  const json& ds_config = options["ds_config"];
  const int64_t micro_batch = ds_config["train_micro_batch_size_per_gpu"], length = options["length"];
  const models::BertConfig bert = bert_config(options["model"]);
  const auto world = comm::init_distributed();
  const at::Device device = storage::device_of_rank(options["device"], world->local_rank(), "device");
  const auto engine =
      initialize(std::make_shared<models::BertForMaskedLM>(bert),
                 config::parse_ds_config(ds_config, "bench/training", {.data_parallel_size = world->size()}),
                 {.world = world, .device = device, .fill = [&](const std::string& name, at::Tensor value) {
                    models::initialize_bert_parameter(bert, /*seed=*/42, name, value);
                  }});
  engine->train();
  at::manual_seed(static_cast<uint64_t>(world->rank()));
  const models::BertInput input{.input_ids = at::randint(bert.vocab_size, {micro_batch, length}, at::kLong).to(device)};
  at::Tensor labels = at::randint(bert.vocab_size, {micro_batch, length}, at::kLong);
  const int64_t predicted = static_cast<int64_t>(options.value("predicted", 1.0) * static_cast<double>(labels.numel()));
  labels.view(-1).slice(0, predicted).fill_(nn::kNoTarget);
  labels = labels.to(device);
  const auto loss_of = [&](models::BertForMaskedLM& model, const models::BertInput& in) {
    return model.masked_loss_sum(in, labels) / predicted;
  };
  const auto take_steps = [&](int count) {
    const auto begin = std::chrono::steady_clock::now();
    double update_seconds = 0, loss = 0;
    for (; count > 0; --count) {
      const at::Tensor result = engine->call(loss_of, input);
      engine->backward(result);
      storage::synchronize(device);
      const auto update_begin = std::chrono::steady_clock::now();
      engine->step();
      storage::synchronize(device);
      update_seconds += seconds_since(update_begin);
      loss = result.item<double>();
    }
    std::printf("%.6f %.6f %.9g %lld\n", seconds_since(begin), update_seconds, loss,
                static_cast<long long>(peak_bytes_on(device)));
    std::fflush(stdout);
  };
  take_steps(1);
  const bool traced = options.contains("trace");
  if (traced) engine->start_timeline(options["trace"]);
  for (std::string line; std::getline(std::cin, line);) take_steps(std::stoi(line));
  if (traced) engine->write_timeline();
  world->barrier("the end");
}
