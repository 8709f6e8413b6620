// What "auto" becomes. A door (the command line's trainer, the C++ API, the Python door) fills in what it knows; the
// rest takes the value that the clients of DeepSpeed would fill in (Hugging Face's TrainingArguments and Accelerate):
//
//   train_batch_size                       micro x accumulation x data-parallel ranks
//   train_micro_batch_size_per_gpu         micro_batch, else what train_batch_size implies, else 1
//   gradient_accumulation_steps            accumulation, else what the other two imply, else 1
//   gradient_clipping                      gradient_clipping, else 1.0
//   optimizer.params.lr                    learning_rate, else 5e-5
//   optimizer.params.betas                 betas, else [0.9, 0.999]
//   optimizer.params.eps                   eps, else 1e-8
//   optimizer.params.weight_decay          weight_decay, else 0
//   scheduler.params.warmup_min_lr         0
//   scheduler.params.warmup_max_lr         the learning rate of the optimizer
//   scheduler.params.warmup_num_steps      warmup_num_steps, else 1
//   scheduler.params.total_num_steps       total_num_steps; an error where it is not known
//   scheduler.params.num_training_steps    the same
//   scheduler.params.num_warmup_steps      warmup_num_steps or 0
//   fp16.enabled, bf16.enabled             fp16_enabled, bf16_enabled, else false
//   zero_optimization.reduce_bucket_size                    hidden_size^2, else the key's default
//   zero_optimization.stage3_prefetch_bucket_size           0.9 hidden_size^2, else the key's default
//   zero_optimization.stage3_param_persistence_threshold    10 hidden_size, else the key's default
//
// In the blocks where DeepSpeed itself reads "auto" as "the default" (zero_optimization, fp16, bf16, the monitors, …)
// any other key does so too, but for zero_optimization.stage: which memory is sharded is not to be guessed. Elsewhere
// "auto" is an error that names the key.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace tessera::config {

struct AutoValues {
  std::optional<double> learning_rate = {};
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<double> gradient_clipping = {};
  std::optional<int64_t> micro_batch = {};   // samples in one forward pass of one rank
  std::optional<int64_t> accumulation = {};  // micro batches in an optimizer step
  std::optional<bool> fp16_enabled = {};
  std::optional<bool> bf16_enabled = {};
  std::optional<int64_t> hidden_size = {};  // of the model
  std::optional<int64_t> warmup_num_steps = {};
  std::optional<int64_t> total_num_steps = {};  // optimizer steps of the whole run

  // True: a key whose "auto" cannot be known yet stays unresolved instead of failing: total_num_steps is then 0. For
  // `tessera config check`, and for a trainer that needs the batch sizes in order to count the steps.
  bool leave_unknown = false;
};

}  // namespace tessera::config
