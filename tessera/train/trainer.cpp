#include "tessera/train/trainer.h"

#include <fmt/format.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/trace.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/train/metrics.h"
#include "tessera/train/progress.h"

namespace tessera::train {
namespace fs = std::filesystem;
using std::chrono::duration;
using std::chrono::steady_clock;

Trainer::Trainer(const TrainerParts& parts, const TrainerOptions& options)
    : parts_(parts), options_(options), inbox_({SIGINT, SIGTERM}) {}

void Trainer::refuse_to_overwrite() const {
  const fs::path checkpoints = options_.output / "checkpoints";
  if (!fs::exists(checkpoints / "latest")) return;
  throw Error(ErrorKind::kUsage, {"the output already holds a run with checkpoints", checkpoints.string(),
                                  "continue it with --resume auto, or choose another output"});
}

void Trainer::resume() {
  if (options_.resume.empty()) {
    refuse_to_overwrite();
    return;
  }
  const bool automatic = options_.resume == "auto";
  fs::path folder = automatic ? options_.output / "checkpoints" : fs::path(options_.resume);
  std::string tag;
  if (fs::exists(folder / "manifest.json")) {  // the checkpoint itself
    folder = fs::absolute(folder).lexically_normal();
    if (folder.filename().empty()) folder = folder.parent_path();
    tag = folder.filename().string();
    folder = folder.parent_path();
  }
  const auto loaded = parts_.engine.load_checkpoint(folder.string(), tag, {.fall_back = automatic});
  if (!loaded) {
    if (automatic) {
      if (parts_.engine.world().rank() == 0)
        log_info("there is no checkpoint to resume in {}: starting", folder.string());
      return;
    }
    throw Error(ErrorKind::kData, {"there is no checkpoint to resume", folder.string(),
                                   "name a checkpoint's folder, or the folder that holds checkpoints"});
  }
  position_ = position_of(loaded->client_state, loaded->path);
  last_saved_ = loaded->path;
  if (parts_.engine.world().rank() == 0) {
    log_info("resumed {} after step {}", loaded->path, parts_.engine.global_steps());
  }
}

// A place in the data is a number of samples of an epoch, so that another number of ranks, or another split of the
// batch, goes on where the run stopped.
Trainer::Position Trainer::position_of(const nlohmann::json& state, const std::string& checkpoint) const {
  Position position;
  int64_t samples_in_epoch = 0, data_samples = 0;
  try {
    position = {.epoch = state.at("epoch"), .samples = state.at("samples"), .tokens = state.at("tokens")};
    samples_in_epoch = state.at("samples_in_epoch");
    data_samples = state.at("data_samples");
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kData, {"the checkpoint does not say how far its run was: it was not made by tessera train",
                                   checkpoint, "load it from a program with Engine::load_checkpoint"});
  }
  const int64_t global_batch = parts_.engine.config().batch.global;
  if (data_samples != parts_.data_samples) {
    throw Error(ErrorKind::kData, {fmt::format("the checkpoint's run had {} training samples, this one has {}",
                                               data_samples, parts_.data_samples),
                                   checkpoint, "resume with the same training data"});
  }
  if (samples_in_epoch % global_batch != 0) {
    throw Error(ErrorKind::kData,
                {fmt::format("the checkpoint stands at sample {} of its epoch, which is no multiple of the batch of {}",
                             samples_in_epoch, global_batch),
                 checkpoint, "resume with the batch size that it was made with, or one that divides that"});
  }
  position.step_in_epoch = samples_in_epoch / global_batch;
  return position;
}

LossSum Trainer::take_step(const data::StepBatches& batches) {
  BertEngine& engine = parts_.engine;
  // The engine takes the mean over ranks and accumulation steps; the loss is to be the mean over target tokens.
  const double shares = static_cast<double>(engine.world().size() * parts_.accumulation);
  const double scale = shares / static_cast<double>(std::max<int64_t>(1, batches.target_tokens));
  LossSum mine;
  for (size_t micro = 0; micro < batches.micro_batches.size(); ++micro) {
    const data::Batch& batch = batches.micro_batches[micro];
    engine.set_gradient_accumulation_boundary(micro + 1 == batches.micro_batches.size());
    const at::Tensor loss = masked_loss_sum(engine, batch);
    engine.backward(loss * scale);
    try {
      engine.step();
    } catch (const checkpoint::SaveFailed& error) {  // the step is taken
      report_failed_save(error);
    }
    mine.loss += loss.item<double>();
    mine.target_tokens += batch.target_tokens;
    mine.tokens += batch.tokens;
  }
  return sum_over_ranks(engine.world(), mine);
}

data::StepBatches Trainer::next_batches() {
  const TraceSpan span(TraceLane::kCompute, "next batches");
  return parts_.loader.next();
}

double Trainer::held_back_loss() {
  const TraceSpan span(TraceLane::kCompute, "evaluation");
  return evaluate(parts_.engine, *parts_.eval_dataset, *parts_.eval_collator, parts_.engine.config().batch.micro)
      .mean();
}

void Trainer::save() {
  const nlohmann::json state = {{"epoch", position_.epoch},
                                {"samples_in_epoch", position_.step_in_epoch * parts_.engine.config().batch.global},
                                {"data_samples", parts_.data_samples},
                                {"samples", position_.samples},
                                {"tokens", position_.tokens},
                                {"architecture", "BertForMaskedLM"},
                                {"model_folder", fs::absolute(options_.model).string()}};
  const fs::path folder = options_.output / "checkpoints";
  checkpoint::SaveOptions how = parts_.engine.save_options();
  how.in_background = options_.async_save;
  how.retention = options_.retention;
  finish_saving();
  saving_ = (folder / fmt::format("global_step{}", parts_.engine.global_steps())).string();
  try {
    parts_.engine.save_checkpoint(folder.string(), "", state, how);
    if (!how.in_background) last_saved_ = saving_;
  } catch (const Error& error) {
    report_failed_save(error);
  }
}

// Training goes on without the checkpoint: the earlier ones are as they were, and the next may succeed.
void Trainer::report_failed_save(const Error& error) {
  if (error.kind() != ErrorKind::kMachine) throw error;
  save_failure_ = error;
  saving_.clear();
  if (parts_.engine.world().rank() == 0) log_error("{}\ntraining goes on", error.what());
}

void Trainer::finish_saving() {
  try {
    parts_.engine.finish_saving();
    if (!saving_.empty()) last_saved_ = saving_;
  } catch (const checkpoint::SaveFailed& error) {
    report_failed_save(error);
  }
}

// A signal may reach the ranks between different steps, so they agree on the step that ends.
bool Trainer::stop_requested() {
  const bool mine = inbox_.next().has_value();
  return sum_over_ranks(parts_.engine.world(), {.loss = mine ? 1.0 : 0.0}).loss > 0;
}

TrainerReport Trainer::run() {
  BertEngine& engine = parts_.engine;
  const bool speaks = engine.world().rank() == 0;
  engine.train();
  resume();
  parts_.loader.seek(position_.epoch, position_.step_in_epoch);

  TrainerReport report;
  if (parts_.eval_dataset != nullptr) {
    report.loss_before = held_back_loss();
    report.loss_after = report.loss_before;
    if (speaks) log_info("loss on held-back text: {:.4f}", *report.loss_before);
  }
  std::unique_ptr<MetricsFile> metrics;
  std::unique_ptr<Progress> progress;
  if (speaks) {
    metrics = std::make_unique<MetricsFile>(options_.output / "metrics.jsonl", engine.global_steps());
    progress = std::make_unique<Progress>(engine.global_steps() + 1, options_.max_steps);
  }
  const int64_t steps_per_epoch = parts_.loader.steps_per_epoch();
  int64_t evaluated_at = engine.global_steps();
  bool saved = !last_saved_.empty();
  while (engine.global_steps() < options_.max_steps && !report.interrupted) {
    const auto start = steady_clock::now();
    const data::StepBatches batches = next_batches();
    const double lr = engine.lr();
    const double loss_scale = engine.loss_scale();
    const LossSum sum = take_step(batches);
    const bool epoch_ends = batches.step_in_epoch + 1 == steps_per_epoch;
    position_ = {.epoch = batches.epoch + (epoch_ends ? 1 : 0),
                 .step_in_epoch = epoch_ends ? 0 : batches.step_in_epoch + 1,
                 .samples = position_.samples + batches.samples,
                 .tokens = position_.tokens + sum.tokens};
    const int64_t step = engine.global_steps();
    saved = false;
    if (speaks) {
      metrics->append({.step = step,
                       .epoch = static_cast<double>(position_.epoch) +
                                static_cast<double>(position_.step_in_epoch) / static_cast<double>(steps_per_epoch),
                       .loss = sum.mean(),
                       .grad_norm = engine.get_global_grad_norm(),
                       .lr = lr,
                       .loss_scale = loss_scale,
                       .samples = position_.samples,
                       .tokens = position_.tokens,
                       .step_seconds = duration<double>(steady_clock::now() - start).count(),
                       .model_state_bytes = engine.model_state_bytes(),
                       .peak_memory_bytes = peak_memory_bytes()});
      progress->update({.step = step, .loss = sum.mean(), .lr = lr, .tokens = sum.tokens});
    }
    report.interrupted = stop_requested();
    const auto due = [&](int64_t every) { return every > 0 ? step % every == 0 : epoch_ends; };
    const bool last = step == options_.max_steps;
    if (parts_.eval_dataset != nullptr && !report.interrupted && !last && due(options_.eval_steps)) {
      report.loss_after = held_back_loss();
      evaluated_at = step;
      if (speaks) {
        progress->pause();
        log_info("step {}: loss on held-back text {:.4f}", step, *report.loss_after);
      }
    }
    if (due(options_.save_steps) || report.interrupted) {
      if (speaks) progress->pause();
      save();
      saved = true;
    }
  }
  progress.reset();
  if (!saved) save();
  finish_saving();
  if (saving_.empty() && save_failure_) throw *save_failure_;  // the last state is not on the disk
  if (report.interrupted && speaks)
    log_info("stopped by a signal after step {}, its state is saved", engine.global_steps());
  if (parts_.eval_dataset != nullptr && !report.interrupted && evaluated_at < engine.global_steps()) {
    report.loss_after = held_back_loss();
  }
  report.steps = engine.global_steps();
  report.checkpoint = last_saved_;
  return report;
}

}  // namespace tessera::train
