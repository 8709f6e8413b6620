#include "tessera/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/sampler.h"

namespace tessera::data {

namespace {

struct Place {
  int64_t epoch = 0;
  int64_t step = 0;
};

void check_options(const LoaderOptions& options) {
  const auto at_least_one = [](const char* name, int64_t value) {
    if (value < 1) throw Error(ErrorKind::kConfig, {fmt::format("{} is {}", name, value), "", "use 1 or more"});
  };
  at_least_one("the micro batch", options.micro_batch);
  at_least_one("the number of gradient accumulation steps", options.accumulation);
  at_least_one("the world size", options.world_size);
  at_least_one("the number of steps to keep ready", options.steps_ahead);
  if (options.rank < 0 || options.rank >= options.world_size) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("the rank is {}, but the world size is {}", options.rank, options.world_size), "",
                 fmt::format("use 0 to {}", options.world_size - 1)});
  }
}

int64_t samples_of_step(const LoaderOptions& options) {
  return options.micro_batch * options.accumulation * options.world_size;
}

SamplerOptions sampler_options(size_t samples, const LoaderOptions& options) {
  return {.dataset_size = samples,
          .world_size = options.world_size,
          .rank = options.rank,
          .seed = options.seed,
          .shuffle = options.shuffle,
          .drop_last = options.drop_last};
}

}  // namespace

std::string facts_of(const LoaderOptions& options) {
  return fmt::format("{} of {} samples for each of {} ranks, {}{}", options.accumulation, options.micro_batch,
                     options.world_size,
                     options.shuffle ? fmt::format("shuffled by seed {}", options.seed) : "in order",
                     options.drop_last ? ", without a last step that is not full" : "");
}

int64_t steps_in_epoch(size_t samples, const LoaderOptions& options) {
  check_options(options);
  const auto length = static_cast<int64_t>(epoch_length(sampler_options(samples, options)));
  const int64_t each = samples_of_step(options);
  const int64_t steps = options.drop_last ? length / each : (length + each - 1) / each;
  if (steps == 0) {
    throw Error(
        ErrorKind::kData,
        {fmt::format("an epoch has no steps: {} samples do not fill one global batch of {}, and drop_last is set",
                     samples, each),
         "the training data", "reduce the batch size, or do not drop the last batch"});
  }
  return steps;
}

// The thread fills ready_ up to steps_ahead and sleeps. A seek empties ready_ and moves place_; what the thread was
// then building belongs to the old course_ and is thrown away.
class UntypedLoader::Worker {
  using Step = std::pair<StepPlace, Batches>;

 public:
  Worker(Samples<std::shared_ptr<void>> samples, const LoaderOptions& options)
      : samples_(std::move(samples)), options_(options), sampler_(sampler_options(samples_.size, options)) {
    steps_per_epoch_ = steps_in_epoch(samples_.size, options_);
    thread_ = std::thread([this] { run(); });
  }

  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_worker_.notify_all();
    thread_.join();
  }

  int64_t steps_per_epoch() const { return steps_per_epoch_; }

  void seek(Place place) {
    if (place.epoch < 0 || place.step < 0 || place.step > steps_per_epoch_) {
      throw Error(ErrorKind::kData, {fmt::format("step {} of epoch {} does not exist: an epoch has {} steps",
                                                 place.step, place.epoch, steps_per_epoch_),
                                     "", "resume with the data and batch size that the run started with"});
    }
    {
      const std::lock_guard lock(mutex_);
      ++course_;
      place_ = place.step == steps_per_epoch_ ? Place{place.epoch + 1, 0} : place;
      ready_.clear();
      failure_ = nullptr;
    }
    wake_worker_.notify_all();
  }

  Step next() {
    std::unique_lock lock(mutex_);
    wake_caller_.wait(lock, [this] { return !ready_.empty() || failure_; });
    if (ready_.empty()) std::rethrow_exception(failure_);
    Step step = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    wake_worker_.notify_all();
    return step;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_worker_.wait(lock, [this] {
        return stopping_ || (!failure_ && static_cast<int64_t>(ready_.size()) < options_.steps_ahead);
      });
      if (stopping_) return;
      const Place place = place_;
      const int64_t course = course_;
      lock.unlock();
      Step step;
      std::exception_ptr failure;
      try {
        step = build(place);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (course != course_) continue;
      failure_ = failure;
      if (!failure) {
        ready_.push_back(std::move(step));
        place_ = place.step + 1 == steps_per_epoch_ ? Place{place.epoch + 1, 0} : Place{place.epoch, place.step + 1};
      }
      wake_caller_.notify_all();
    }
  }

  Step build(Place place) {
    if (order_epoch_ != place.epoch) {
      order_ = epoch_order(sampler_, place.epoch);
      order_epoch_ = place.epoch;
    }
    const auto first = static_cast<size_t>(place.step * samples_of_step(options_));
    const auto count = std::min(static_cast<size_t>(samples_of_step(options_)), order_.size() - first);
    const auto global = std::span<const size_t>(order_).subspan(first, count);
    std::vector<size_t> own;
    for (auto i = static_cast<size_t>(options_.rank); i < count; i += static_cast<size_t>(options_.world_size)) {
      own.push_back(global[i]);
    }
    Step step{{.epoch = place.epoch,
               .step_in_epoch = place.step,
               .samples = static_cast<int64_t>(count),
               .target_tokens =
                   samples_.count_targets ? samples_.count_targets(global, place.epoch) : static_cast<int64_t>(count)},
              {}};
    const auto rows = static_cast<size_t>(options_.micro_batch);
    for (size_t i = 0; i < own.size() && !stopping(); i += rows) {
      step.second.push_back(
          samples_.collate(std::span<const size_t>(own).subspan(i, std::min(rows, own.size() - i)), place.epoch));
    }
    return step;
  }

  // Lets a destruction interrupt a step of many micro batches; what is then built is thrown away.
  bool stopping() {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  const Samples<std::shared_ptr<void>> samples_;
  const LoaderOptions options_;
  const SamplerOptions sampler_;
  int64_t steps_per_epoch_ = 0;

  // The thread's own.
  std::vector<size_t> order_;
  int64_t order_epoch_ = -1;

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_worker_;
  std::condition_variable wake_caller_;
  std::deque<Step> ready_;
  Place place_;         // of the step that the thread builds next
  int64_t course_ = 0;  // counts the seeks
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::thread thread_;  // last: it starts when all else is there
};

UntypedLoader::UntypedLoader(Samples<std::shared_ptr<void>> samples, const LoaderOptions& options)
    : worker_(std::make_unique<Worker>(std::move(samples), options)) {}

UntypedLoader::~UntypedLoader() = default;

int64_t UntypedLoader::steps_per_epoch() const { return worker_->steps_per_epoch(); }

void UntypedLoader::seek(int64_t epoch, int64_t step_in_epoch) { worker_->seek({epoch, step_in_epoch}); }

std::pair<StepPlace, UntypedLoader::Batches> UntypedLoader::next() { return worker_->next(); }

}  // namespace tessera::data
