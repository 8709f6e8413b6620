#include "tessera/train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "tessera/base/activity.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/base/log.h"
#include "tessera/base/signals.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/comm/agreement.h"
#include "tessera/engine/pipeline_run.h"
#include "tessera/monitor/monitors.h"
#include "tessera/storage/folder_lock.h"
#include "tessera/train/evaluation.h"
#include "tessera/train/progress.h"
#include "tessera/train/run.h"
#include "tessera/train/step_traffic.h"

namespace tessera::train {
namespace fs = std::filesystem;
using std::chrono::duration;
using std::chrono::steady_clock;

class Trainer::Loop {
 public:
  Loop(ModuleEngine& engine, Task& task, TrainerOptions options)
      : engine_(engine),
        task_(task),
        options_(std::move(options)),
        best_metric_(find_metric(all_metrics(task.metrics()), options_.best_by, "training.best_by")),
        inbox_({SIGINT, SIGTERM, kRequeueSignal}),
        traffic_(engine.world()) {}

  TrainerReport run();

 private:
  struct Position {
    int64_t epoch = 0;
    int64_t step_in_epoch = 0;  // steps of the epoch that are done, the last one not: then the next epoch begins
    int64_t samples = 0;
    int64_t tokens = 0;
  };

  void require_same_training();
  void lock_output();
  void resume();
  void restore_position(const LoadedCheckpoint& loaded);
  void restore_best(const nlohmann::json& state);
  void open_output();
  void train_step();
  LossSum take_step(const data::StepPlace& step);
  void step_engine();
  void look_for_divergence(double loss, double loss_scale);
  void require_some_training() const;
  LossSum evaluate_now();
  void look_for_best(const LossSum& seen);
  void save();
  void save_as_best();
  void finish_saving();
  void report_failed_save(const Error& error);
  void look_for_signals();
  bool speaks() const { return engine_.world().rank() == 0; }
  bool seeks_best() const { return options_.keep_best || options_.patience > 0; }
  bool out_of_patience() const { return options_.patience > 0 && evaluations_without_better_ >= options_.patience; }
  void report_impatience() const;
  fs::path checkpoints() const { return options_.output / "checkpoints"; }

  ModuleEngine& engine_;
  Task& task_;
  TrainerOptions options_;
  Metric best_metric_;
  std::unique_ptr<storage::FolderLock> lock_;  // of checkpoints(); rank 0's
  SignalInbox inbox_;
  Position position_;
  TrainerReport report_;
  StepTraffic traffic_;
  bool epoch_ended_ = false;                // with the last step
  int64_t bad_steps_ = 0;                   // the last ones in a row
  int64_t evaluations_without_better_ = 0;  // the last ones in a row
  int64_t skipped_ = 0;                     // of those that this process took
  std::string last_finite_;                 // the newest checkpoint that was begun after a step that was not bad
  std::vector<std::unique_ptr<monitor::Monitor>> monitors_;
  std::unique_ptr<Progress> progress_;
  std::string last_saved_;             // the newest that is whole
  std::string saving_;                 // the newest that was begun; empty: it failed
  bool saving_best_ = false;           // … is the best so far
  int64_t saved_at_ = -1;              // steps of the newest that was begun
  std::optional<Error> save_failure_;  // the last
};

Trainer::Trainer(ModuleEngine& engine, Task& task, TrainerOptions options)
    : loop_(std::make_unique<Loop>(engine, task, std::move(options))) {}

Trainer::~Trainer() = default;

TrainerReport Trainer::run() { return loop_->run(); }

bool holds_checkpoints(const fs::path& output) { return fs::exists(output / "checkpoints" / "latest"); }

void refuse_to_overwrite(const fs::path& output) {
  if (!holds_checkpoints(output)) return;
  throw Error(ErrorKind::kUsage, {"the output already holds a run with checkpoints", (output / "checkpoints").string(),
                                  "resume it with --resume auto, or choose another output"});
}

namespace {

// A folder of checkpoints, and which of them; empty: the newest.
struct NamedCheckpoint {
  fs::path folder;
  std::string tag;
};

NamedCheckpoint checkpoint_named_by(fs::path folder) {
  if (!fs::exists(folder / "manifest.json")) return {folder, ""};
  folder = fs::absolute(folder).lexically_normal();  // the checkpoint itself
  if (folder.filename().empty()) folder = folder.parent_path();
  return {folder.parent_path(), folder.filename().string()};
}

Error no_checkpoint(const fs::path& folder) {
  return Error(ErrorKind::kData,
               {"no checkpoint to resume from", folder.string(), "name a checkpoint, or a folder of checkpoints"});
}

}  // namespace

void require_checkpoint(const std::string& resume) {
  if (resume.empty() || resume == "auto") return;
  const auto [folder, tag] = checkpoint_named_by(resume);
  if (tag.empty() && !fs::exists(folder / "latest")) throw no_checkpoint(folder);
}

void Trainer::Loop::require_same_training() {
  const std::string text = fmt::format(
      "{} samples, {} held out\n{}\n{} steps, evaluated every {} on {} samples{}{}\nthe best is that of {}, patience "
      "{}\nsaved every {} steps{}\n{}",
      task_.samples(), task_.eval_samples(), task_.facts(), options_.max_steps, options_.eval_steps,
      options_.eval_samples, options_.eval_at_start ? ", also at the start" : "",
      options_.keep_best ? ", the best kept" : "", options_.best_by, options_.patience, options_.save_steps,
      options_.async_save ? " in the background" : "", options_.resume.empty() ? "a new run" : "a run that resumes");
  comm::require_agreement(engine_.world(), {{"training", text, "give every rank the same data and options"}},
                          "Trainer");
}

// Before anything there is looked at: of two runs that start at once, one goes on.
void Trainer::Loop::lock_output() {
  comm::all_or_none(engine_.world(), "the lock of the output", [this] {
    if (speaks()) lock_ = std::make_unique<storage::FolderLock>(checkpoints());
  });
}

void Trainer::Loop::resume() {
  if (options_.resume.empty()) {
    refuse_to_overwrite(options_.output);
    return;
  }
  const bool automatic = options_.resume == "auto";
  const auto [folder, tag] = checkpoint_named_by(automatic ? checkpoints() : fs::path(options_.resume));
  const auto loaded = engine_.load_checkpoint(folder.string(), tag, {.fall_back = automatic});
  if (!loaded) {
    if (automatic) {
      if (speaks()) log_info("no checkpoint to resume from in {}: starting from the beginning", folder.string());
      return;
    }
    throw no_checkpoint(folder);
  }
  restore_position(*loaded);
  last_saved_ = last_finite_ = loaded->path;
  // A run that was killed may have had no time to name it.
  const bool is_best = options_.keep_best && report_.best && report_.best->step == engine_.global_steps();
  if (is_best && folder == checkpoints() && speaks()) {
    checkpoint::set_best(checkpoints(), fs::path(loaded->path).filename().string());
  }
  saved_at_ = engine_.global_steps();
  if (speaks()) log_info("resumed {} after step {}", loaded->path, engine_.global_steps());
}

// A place in the data is a number of samples of an epoch, so that another number of ranks, or another split of the
// batch, goes on where the run stopped.
void Trainer::Loop::restore_position(const LoadedCheckpoint& loaded) {
  const nlohmann::json& state = loaded.client_state;
  const bool by_python = state.contains("program") || state.contains("python");  // the latter by earlier versions
  if (by_python && !state.contains("epoch")) {
    if (speaks()) {
      log_warning("{} was saved by a Python program, which notes no place in the data: the data starts anew",
                  loaded.path);
    }
    position_.samples = engine_.global_samples();
    return;
  }
  const nlohmann::json own = nlohmann::json::parse(options_.client_state);
  const auto quantization = [](const nlohmann::json& of) { return of.value("quantization", "none"); };
  if (speaks() && quantization(own) != quantization(state)) {
    log_warning("{} was trained beside weights of model.quantization {}, and this run's is {}", loaded.path,
                quantization(state), quantization(own));
  }
  int64_t samples_in_epoch = 0, data_samples = 0;
  try {
    position_ = {.epoch = state.at("epoch"), .samples = state.at("samples"), .tokens = state.at("tokens")};
    samples_in_epoch = state.at("samples_in_epoch");
    data_samples = state.at("data_samples");
    restore_best(state);
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kData,
                {"the checkpoint does not record its run's progress: it was not saved by tessera train", loaded.path,
                 "load it in a program with Engine::load_checkpoint"});
  }
  const int64_t global_batch = engine_.train_batch_size();
  if (data_samples != task_.samples()) {
    throw Error(ErrorKind::kData,
                {fmt::format("the checkpoint's run had {} training samples, but this one has {}",
                             format_count(data_samples), format_count(task_.samples())),
                 loaded.path,
                 "resume with the same training data, cut into samples the same way (the run file's 'data' block)"});
  }
  if (samples_in_epoch % global_batch != 0) {
    throw Error(
        ErrorKind::kData,
        {fmt::format("the checkpoint is at sample {} of its epoch, which is not a multiple of the batch size, {}",
                     samples_in_epoch, global_batch),
         loaded.path, "resume with the original batch size, or one that divides it"});
  }
  position_.step_in_epoch = samples_in_epoch / global_batch;
}

// Of another metric nothing is known: then the best is sought anew.
void Trainer::Loop::restore_best(const nlohmann::json& state) {
  const bool by_loss = state.contains("best_loss");  // as earlier versions note it
  const std::string by = by_loss ? "eval_loss" : state.value("best_by", "");
  if (by.empty() || !seeks_best()) return;
  if (by != best_metric_.name) {
    if (speaks()) log_info("the best so far was that of {}; that of {} is sought anew", by, best_metric_.name);
    return;
  }
  const char* const key = by_loss ? "best_loss" : "best_value";
  if (state.contains(key)) report_.best = BestEvaluation{state.at("best_step"), state.at(key)};
  evaluations_without_better_ = state.value("evaluations_without_better", int64_t{0});
}

LossSum Trainer::Loop::take_step(const data::StepPlace& step) {
  // The engine takes the mean over ranks and accumulation steps; the loss is to be the mean over targets.
  const double shares = static_cast<double>(engine_.data_group().size() * engine_.gradient_accumulation_steps());
  const double scale = shares / static_cast<double>(std::max<int64_t>(1, step.target_tokens));
  LossSum mine;
  const size_t count = task_.micro_batches();
  const auto add = [&mine](const BatchLoss& batch) {
    mine.loss += batch.sum.item<double>();
    mine.targets += batch.targets;
    mine.tokens += batch.tokens;
  };
  if (engine::PipelineRun* const pipeline = task_.pipeline()) {
    pipeline->train(static_cast<int>(count), [&](const engine::StagePass& pass) {
      BatchLoss batch = task_.loss(pass);
      if (!pipeline->is_last(pass.stage)) return std::move(batch.leaving);
      add(batch);
      return std::vector{batch.sum * scale};
    });
    step_engine();
    return sum_over_ranks(pipeline->ranks_of_losses(), mine);
  }
  for (size_t micro = 0; micro < count; ++micro) {
    engine_.set_gradient_accumulation_boundary(micro + 1 == count);
    const BatchLoss batch = task_.loss({.micro_batch = static_cast<int>(micro)});
    engine_.backward(batch.sum * scale);
    step_engine();
    add(batch);
  }
  return sum_over_ranks(engine_.data_group(), mine);
}

void Trainer::Loop::step_engine() {
  try {
    engine_.step();
  } catch (const checkpoint::SaveFailed& error) {  // the step is taken
    report_failed_save(error);
  }
}

LossSum Trainer::Loop::evaluate_now() {
  const Activity activity("evaluation");
  const auto start = steady_clock::now();
  const int64_t step = engine_.global_steps();
  const LossSum sum = evaluate(engine_, task_,
                               {.micro_batch = engine_.train_micro_batch_size_per_gpu(),
                                .most_samples = options_.eval_samples,
                                .progress = [this](int64_t done, int64_t all) { progress_->evaluating(done, all); }});
  report_.last = HeldOutLoss{.step = step, .loss = sum.mean()};
  for (const Metric& metric : task_.metrics()) report_.last->others.emplace_back(metric.name, metric.value(sum));
  if (!report_.first) report_.first = report_.last;
  if (!speaks()) return sum;
  const monitor::EvaluationMetrics metrics{
      .step = step,
      .loss = sum.mean(),
      .samples = evaluated_samples(task_, engine_.batch_group().size(), options_.eval_samples),
      .seconds = duration<double>(steady_clock::now() - start).count(),
      .others = report_.last->others};
  for (const auto& each : monitors_) each->evaluation(metrics);
  std::string text = fmt::format("step {}: held-out loss {:.4f}", step, sum.mean());
  for (const auto& [name, value] : report_.last->others) text += fmt::format(", {} {:.4f}", name, value);
  log_info("{}", text);
  return sum;
}

// All ranks see the same.
void Trainer::Loop::look_for_best(const LossSum& seen) {
  if (!seeks_best()) return;
  const double value = best_metric_.value(seen);
  const auto beats = [&](double best) { return best_metric_.larger_is_better ? value > best : value < best; };
  const bool better = std::isfinite(value) && (!report_.best || beats(report_.best->value));
  evaluations_without_better_ = better ? 0 : evaluations_without_better_ + 1;
  if (better) report_.best = BestEvaluation{engine_.global_steps(), value};
}

// The checkpoint is named as the best once it is whole (finish_saving); until then the best one before stays.
void Trainer::Loop::save_as_best() {
  if (!options_.keep_best || !report_.best || report_.best->step != engine_.global_steps()) return;
  save();
  saving_best_ = true;
}

void Trainer::Loop::report_impatience() const {
  const std::string best = report_.best ? fmt::format("{:.4f} after step {}", report_.best->value, report_.best->step)
                                        : std::string("none was finite");
  log_info("training stops after step {}: {} without a better {} (the best: {}); training.patience says how many",
           engine_.global_steps(), count_of(evaluations_without_better_, "evaluation"), best_metric_.name, best);
}

void Trainer::Loop::save() {
  nlohmann::json state = nlohmann::json::parse(options_.client_state);
  state.update({{"epoch", position_.epoch},
                {"samples_in_epoch", position_.step_in_epoch * engine_.train_batch_size()},
                {"data_samples", task_.samples()},
                {"samples", position_.samples},
                {"tokens", position_.tokens}});
  if (seeks_best()) {
    state.update({{"best_by", best_metric_.name}, {"evaluations_without_better", evaluations_without_better_}});
  }
  if (report_.best) state.update({{"best_step", report_.best->step}, {"best_value", report_.best->value}});
  const fs::path folder = checkpoints();
  checkpoint::SaveOptions how = engine_.save_options();
  how.in_background = options_.async_save;
  how.trainable_only = options_.trainable_only;
  how.retention = options_.retention;
  how.diverged = bad_steps_ > 0;
  finish_saving();
  saved_at_ = engine_.global_steps();
  saving_ = (folder / fmt::format("global_step{}", saved_at_)).string();
  try {
    engine_.save_checkpoint(folder.string(), "", state, how);
    if (!how.in_background) last_saved_ = saving_;
    if (!how.diverged) last_finite_ = saving_;
  } catch (const Error& error) {
    report_failed_save(error);
  }
}

// Training goes on without the checkpoint: the earlier ones are as they were, and the next may succeed.
void Trainer::Loop::report_failed_save(const Error& error) {
  if (error.kind() != ErrorKind::kMachine) throw error;
  save_failure_ = error;
  saving_.clear();
  if (speaks()) log_error("{}\ntraining continues", error.what());
}

void Trainer::Loop::finish_saving() {
  try {
    engine_.finish_saving();
    if (!saving_.empty()) last_saved_ = saving_;
  } catch (const checkpoint::SaveFailed& error) {
    report_failed_save(error);
  }
  if (std::exchange(saving_best_, false) && !saving_.empty() && speaks()) {
    checkpoint::set_best(checkpoints(), fs::path(saving_).filename().string());
  }
}

// A signal may reach the ranks between different steps, so they agree on the step that ends.
void Trainer::Loop::look_for_signals() {
  int64_t mine = 0;
  int64_t requeues = 0;
  while (const auto signal = inbox_.next()) {
    ++mine;
    if (*signal == kRequeueSignal) ++requeues;
  }
  const LossSum all = sum_over_ranks(engine_.world(), {.targets = mine, .tokens = requeues});
  report_.interrupted = all.targets > 0;
  report_.wants_requeue = all.tokens > 0;
}

void Trainer::Loop::open_output() {
  progress_ = std::make_unique<Progress>(engine_.global_steps() + 1, options_.max_steps, speaks());
  if (!speaks()) return;
  std::error_code error;
  fs::create_directories(options_.output, error);
  if (error) {
    throw Error(ErrorKind::kMachine, {"the output folder cannot be created: " + error.message(),
                                      options_.output.string(), "choose another output"});
  }
  monitors_ =
      monitor::start_monitors(options_.monitors, {.output = options_.output, .resumed_step = engine_.global_steps()});
  for (const auto& each : monitors_) report_.metrics.push_back(each->place());
}

void Trainer::Loop::train_step() {
  const auto start = steady_clock::now();
  const data::StepPlace step = [&] {
    const Activity activity("next batches");
    return task_.next_step();
  }();
  const double lr = engine_.lr(), loss_scale = engine_.loss_scale();
  traffic_.begin();
  const LossSum sum = take_step(step);
  traffic_.end();
  const int64_t steps_per_epoch = task_.steps_per_epoch();
  epoch_ended_ = step.step_in_epoch + 1 == steps_per_epoch;
  position_ = {.epoch = step.epoch + (epoch_ended_ ? 1 : 0),
               .step_in_epoch = epoch_ended_ ? 0 : step.step_in_epoch + 1,
               .samples = position_.samples + step.samples,
               .tokens = position_.tokens + sum.tokens};
  ++report_.trained;
  if (!engine_.was_step_applied()) ++skipped_;
  if (speaks()) {
    const monitor::StepMetrics metrics{
        .step = engine_.global_steps(),
        .epoch = static_cast<double>(position_.epoch) +
                 static_cast<double>(position_.step_in_epoch) / static_cast<double>(steps_per_epoch),
        .loss = sum.mean(),
        .grad_norm = engine_.get_global_grad_norm(),
        .lr = lr,
        .loss_scale = loss_scale,
        .samples = position_.samples,
        .tokens = position_.tokens,
        .step_seconds = duration<double>(steady_clock::now() - start).count(),
        .model_state_bytes = engine_.model_state_bytes(),
        .peak_memory_bytes = peak_memory_bytes()};
    for (const auto& each : monitors_) each->step(metrics);
  }
  progress_->update({.step = engine_.global_steps(), .loss = sum.mean(), .lr = lr, .tokens = sum.tokens});
  look_for_divergence(sum.mean(), loss_scale);
}

// A step that overflowed is fine while the loss scale still comes down to what fits. All ranks see the same.
void Trainer::Loop::look_for_divergence(double loss, double loss_scale) {
  const bool lowered = engine_.loss_scale() < loss_scale;
  const bool bad = !std::isfinite(loss) || (!engine_.was_step_applied() && !lowered);
  bad_steps_ = bad ? bad_steps_ + 1 : 0;
  if (bad_steps_ == 1 && speaks()) {
    log_warning(
        "step {}: the loss ({}) or the gradients are not finite; what a step with such gradients does to the "
        "weights depends on the precision (docs/troubleshooting.md)",
        engine_.global_steps(), loss);
  }
  if (options_.max_bad_steps == 0 || bad_steps_ < options_.max_bad_steps) return;
  finish_saving();  // what is being saved may be what to go on from
  throw Error(
      ErrorKind::kData,
      {fmt::format("training diverged: each of the last {} had a loss or gradients that are not finite",
                   count_of(bad_steps_, "step")),
       fmt::format("steps {} to {}, loss {}", engine_.global_steps() - bad_steps_ + 1, engine_.global_steps(), loss),
       fmt::format(
           "lower the learning rate, clip gradients or look at the data; in fp16, train in bf16 or fp32, as what "
           "was trained in bf16 overflows there; and {}; "
           "training.max_bad_steps says how many such steps end a run",
           last_finite_.empty() ? "start anew" : "go on with --resume " + last_finite_)});
}

void Trainer::Loop::require_some_training() const {
  if (report_.trained == 0 || skipped_ < report_.trained || report_.interrupted) return;
  throw Error(ErrorKind::kData,
              {fmt::format("nothing was trained: all {} of this run were skipped, as their gradients were not finite",
                           count_of(report_.trained, "step")),
               options_.output.string(), "lower the learning rate or the initial loss scale, or look at the data"});
}

TrainerReport Trainer::Loop::run() {
  const bool evaluates = task_.eval_samples() > 0;
  engine_.train();
  require_same_training();
  lock_output();
  resume();
  task_.seek(position_.epoch, position_.step_in_epoch);
  open_output();
  if (evaluates && options_.eval_at_start && engine_.global_steps() < options_.max_steps) evaluate_now();
  while (engine_.global_steps() < options_.max_steps && !report_.interrupted && !out_of_patience()) {
    train_step();
    look_for_signals();
    const int64_t step = engine_.global_steps();
    const auto due = [&](int64_t every) { return every > 0 ? step % every == 0 : epoch_ended_; };
    const bool last = step == options_.max_steps;
    const bool saves = last || report_.interrupted || due(options_.save_steps);
    if (saves && !seeks_best()) save();  // before an evaluation that may take its time
    if (evaluates && !report_.interrupted && (last || due(options_.eval_steps))) {
      look_for_best(evaluate_now());
      save_as_best();
    }
    if ((saves || out_of_patience()) && saved_at_ != step) save();
  }
  progress_.reset();
  engine_.log_collectives();
  finish_saving();
  report_.out_of_patience = out_of_patience();
  if (report_.out_of_patience && speaks()) report_impatience();
  if (saving_.empty() && save_failure_) throw *save_failure_;  // the last state is not on the disk
  require_some_training();
  if (report_.interrupted && speaks()) {
    log_info("stopped by a signal after step {}; the state is saved{}", engine_.global_steps(),
             report_.wants_requeue ? fmt::format(", and exit code {} asks to go on later", kRequeueCode) : "");
  }
  report_.steps = engine_.global_steps();
  report_.traffic = traffic_.of_all_ranks();
  report_.checkpoint = last_saved_;
  if (options_.keep_best && report_.best && speaks()) {
    const std::string tag = checkpoint::read_best(checkpoints());
    if (!tag.empty()) report_.best_checkpoint = (checkpoints() / tag).string();
  }
  return report_;
}

}  // namespace tessera::train
