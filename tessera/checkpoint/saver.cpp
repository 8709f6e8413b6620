#include "tessera/checkpoint/saver.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <set>

#include "tessera/base/fault_point.h"
#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/publish.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/checkpoint/save_plan.h"
#include "tessera/comm/group.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/storage/atomic_dir.h"
#include "tessera/storage/safetensors.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// What a rank tells the others about its part of a save.
struct Outcome {
  std::optional<ErrorReport> error;  // none: it went well
  storage::FileSum sum;
  json tensors = nullptr;  // which parts of the model, from one of the ranks that share these; null from the others
  json aliases = nullptr;  // … and their other names
};

std::string to_text(const Outcome& outcome) {
  json text{{"bytes", outcome.sum.bytes}, {"xxh3", storage::to_text(outcome.sum.blocks)}};
  if (outcome.error) text["error"] = {outcome.error->what, outcome.error->where, outcome.error->fix};
  if (!outcome.tensors.is_null()) text["tensors"] = outcome.tensors;
  if (!outcome.aliases.is_null()) text["aliases"] = outcome.aliases;
  return text.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

Outcome outcome_of(const std::string& text) {
  const json parsed = json::parse(text);
  std::optional<ErrorReport> error;
  if (parsed.contains("error")) error = {parsed["error"].at(0), parsed["error"].at(1), parsed["error"].at(2)};
  return {std::move(error),
          {parsed.at("bytes"), storage::blocks_of(parsed.at("xxh3"))},
          parsed.value("tensors", json()),
          parsed.value("aliases", json())};
}

// Of a save that failed.
ErrorReport failure_of(const std::string& saving, const ErrorReport& found, const fs::path& folder) {
  constexpr const char* kUntouched = "earlier checkpoints in this folder are untouched";
  return {fmt::format("{}: {}", saving, found.what), found.where.empty() ? folder.string() : found.where,
          found.fix.empty() ? kUntouched : fmt::format("{}; {}", found.fix, kUntouched)};
}

ErrorReport report_of(const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  return own != nullptr ? own->report() : ErrorReport{error.what(), "", ""};
}

// What `work` throws becomes text: std::bad_alloc and the like count too, as no rank may be left waiting.
template <class Work>
Outcome attempt(Work work) {
  Outcome outcome;
  try {
    work(outcome);
  } catch (const std::exception& error) {
    outcome.error = report_of(error);
  }
  return outcome;
}

// All ranks save under the tag of rank 0, and beside training only if all of them can. Hosts may have other names for
// one folder.
void agree_on_how(SaveInput& input) {
  comm::Group& world = input.model.world();
  std::error_code none;  // the name as it is then
  const std::string folder = fs::absolute(input.folder, none).lexically_normal().string();
  const auto texts = world.exchange_texts(
      fmt::format("{}{}\n{}", input.options.in_background ? '&' : ' ', input.tag, folder), "how to save a checkpoint");
  std::vector<std::string> tags, folders;
  for (const std::string& text : texts) {
    const size_t end = text.find('\n');
    tags.push_back(text.substr(1, end - 1));
    folders.push_back(text.substr(end + 1));
    if (text.front() != '&') input.options.in_background = false;
  }
  input.tag = tags.front();
  const auto other = std::find_if(folders.begin(), folders.end(), [&](const auto& each) { return each != folder; });
  if (world.rank() == 0 && other != folders.end()) {
    log_warning(
        "ranks 0 and {} save to different folders, '{}' and '{}': unless these are one, no checkpoint comes of it",
        other - folders.begin(), folder, *other);
  }
  if (input.options.tag_validation == TagValidation::kIgnore) return;
  for (size_t rank = 0; rank < tags.size(); ++rank) {
    if (tags[rank] == tags.front()) continue;
    const std::string what =
        fmt::format("ranks 0 and {} name different tags, '{}' and '{}'", rank, tags.front(), tags[rank]);
    if (input.options.tag_validation == TagValidation::kFail) {
      throw Error(ErrorKind::kUsage, {what, "save_checkpoint", "give every rank the same tag"});
    }
    if (world.rank() == 0) log_warning("{}: the checkpoint is saved as '{}'", what, tags.front());
    break;
  }
}

uint64_t ranks_of_this_host(const comm::Group& world) {
  const int64_t told = comm::ranks_of_this_host();
  return static_cast<uint64_t>(told > 0 ? told : world.size());
}

// The bytes of the shard file, in `image`; returns how many.
size_t copy_into(storage::AlignedBuffer& image, const ShardPlan& plan) {
  const std::string header = storage::safetensors_header(plan.entries);
  const size_t end = header.size() + storage::data_bytes(plan.entries);
  image.reserve(end);
  std::memcpy(image.data(), header.data(), header.size());
  constexpr size_t kChunk = 1U << 20;  // bytes that a thread copies at a time, so that one large tensor is no one's lot
  struct Part {
    const char* from;
    char* to;
    size_t bytes;
  };
  std::vector<Part> parts;
  size_t place = header.size();
  for (const ShardPlan::Source& source : plan.sources) {
    const at::Tensor& tensor = source.tensor.tensor();
    TESSERA_INVARIANT(tensor.is_contiguous());
    if (!tensor.is_cpu()) {
      for (const layout::Range& cut : source.cuts) {
        const at::Tensor part = tensor.narrow(0, cut.begin, cut.numel());
        at::from_blob(image.data() + place, {cut.numel()}, part.scalar_type()).copy_(part);
        place += part.nbytes();
      }
      continue;
    }
    const char* const begin = static_cast<const char*>(tensor.const_data_ptr());
    for (const layout::Range& cut : source.cuts) {
      const char* const from = begin + cut.begin * static_cast<int64_t>(tensor.element_size());
      const size_t bytes = static_cast<size_t>(cut.numel()) * tensor.element_size();
      for (size_t at = 0; at < bytes; at += kChunk) {
        parts.push_back({from + at, image.data() + place + at, std::min(kChunk, bytes - at)});
      }
      place += bytes;
    }
  }
  at::parallel_for(0, static_cast<int64_t>(parts.size()), 4, [&](int64_t begin, int64_t stop) {
    for (int64_t i = begin; i < stop; ++i) std::memcpy(parts[i].to, parts[i].from, parts[i].bytes);
  });
  return end;
}

}  // namespace

// Everything that the writing needs, so that it needs nothing of the model.
struct Saver::Job {
  fs::path folder;
  std::string tag;
  bool leads = false;    // makes and publishes the folder
  bool reports = false;  // says so
  bool sets_latest = true;
  std::string shard;  // this rank's file
  Manifest manifest;  // where leads; its tensors, where all ranks hold the same part of the model
  json own_tensors;   // … else of the units of which this is the first rank that holds the same part
  json own_aliases;
  ShardPlan plan;          // in the foreground
  size_t image_bytes = 0;  // in the background
  Retention retention;
  comm::Group* line = nullptr;
  std::atomic<bool> done = false;
  std::optional<ErrorReport> failure;
};

bool leads(const SaveInput& input) {
  const comm::Group& world = input.model.world();
  return input.options.node_local ? world.local_rank() == 0 : world.rank() == 0;
}

Saver::Saver(comm::Group& world) : world_(world) {}

Saver::~Saver() {
  if (!thread_.joinable()) return;
  if (std::uncaught_exceptions() > 0) line_->cancel();
  thread_.join();
  if (job_->failure) log_error("{}", Error(ErrorKind::kMachine, *job_->failure).what());
}

// Runs on any thread; leaves what went wrong in job.failure.
void Saver::run(Job& job) {
  const fs::path final_folder = job.folder / job.tag, aside = storage::aside_of(final_folder);
  const std::string label = "save of " + job.tag;
  std::vector<Outcome> outcomes;
  bool failed = false;
  const auto agree = [&](const Outcome& mine) {
    outcomes.clear();
    for (const std::string& text : job.line->exchange_texts(to_text(mine), label)) outcomes.push_back(outcome_of(text));
    for (size_t rank = 0; rank < outcomes.size() && !failed; ++rank) {
      if (!outcomes[rank].error) continue;
      failed = true;
      job.failure = failure_of(fmt::format("the checkpoint '{}' could not be saved (rank {})", job.tag, rank),
                               *outcomes[rank].error, job.folder);
      if (job.leads) storage::abandon(final_folder);
    }
    return !failed;
  };
  try {
    if (!agree(attempt([&](Outcome&) {
          if (!job.leads) return;
          lock_ = std::make_unique<storage::FolderLock>(job.folder);
          storage::create_aside(final_folder);
        }))) {
      return;
    }
    fault_point();
    if (!agree(attempt([&](Outcome& mine) {
          const std::string path = (aside / job.shard).string();
          if (job.image_bytes > 0) {
            storage::FileOutput file(path, job.image_bytes);
            file.append_in_place(image_.data(), job.image_bytes);
            mine.sum = file.finish();
          } else {
            storage::SafetensorsWriter writer(path, job.plan.entries);
            for (const ShardPlan::Source& source : job.plan.sources) {
              const at::Tensor tensor = source.tensor.load();
              for (const layout::Range& cut : source.cuts) writer.add(tensor.narrow(0, cut.begin, cut.numel()));
            }
            mine.sum = writer.finish();
          }
          mine.tensors = std::move(job.own_tensors);
          mine.aliases = std::move(job.own_aliases);
        }))) {
      return;
    }
    fault_point();
    const std::vector<Outcome> written = outcomes;
    agree(attempt([&](Outcome&) {
      if (!job.leads) return;
      uint64_t bytes = 0;
      for (const Outcome& outcome : written) {
        if (!outcome.tensors.is_null()) merge_tensors(job.manifest.tensors, tensors_of(outcome.tensors));
        if (!outcome.aliases.is_null())
          job.manifest.aliases.merge(outcome.aliases.get<std::map<std::string, std::string>>());
      }
      require_whole(job.manifest.tensors, written.size());
      for (size_t rank = 0; rank < written.size(); ++rank) {
        job.manifest.files.push_back({shard_name(static_cast<int>(rank), job.manifest.world_size), written[rank].sum});
        bytes += written[rank].sum.bytes;
      }
      publish_checkpoint(job.folder, job.manifest, job.sets_latest);
      if (job.reports) log_info("saved {} ({})", final_folder.string(), format_bytes(bytes));
      prune(job.folder, job.retention);
    }));
  } catch (const std::exception& error) {  // a rank is gone
    job.failure =
        failure_of(fmt::format("the checkpoint '{}' could not be saved", job.tag), report_of(error), job.folder);
  }
}

// Whether the copy can be had without pushing others out of memory; said once where it cannot.
bool Saver::image_fits(const ShardPlan& plan) {
  if (!plan.in_memory()) {
    if (!said_memory_)
      log_info("checkpoints are written synchronously, not in the background: training state is on disk");
    said_memory_ = true;
    return false;
  }
  const uint64_t bytes = storage::safetensors_header(plan.entries).size() + storage::data_bytes(plan.entries);
  if (bytes <= image_.capacity()) return true;
  const uint64_t available = host_memory().available;
  if (bytes * ranks_of_this_host(world_) <= available / 2) return true;
  if (!said_memory_) {
    log_warning(
        "checkpoints are written synchronously, not in the background: a copy needs {} of host memory, {} is available",
        format_bytes(bytes), format_bytes(available));
  }
  said_memory_ = true;
  return false;
}

std::string Saver::save(const SaveInput& given) {
  finish();
  SaveInput input = given;
  if (input.folder.empty()) {
    throw Error(ErrorKind::kUsage, {"the name of the folder to save to is empty", "save_checkpoint", "name a folder"});
  }
  check_new_tag(input.tag);
  ShardPlan plan = plan_shard(input);
  if (input.options.in_background) input.options.in_background = image_fits(plan);
  agree_on_how(input);
  job_ = std::make_unique<Job>();
  Job& job = *job_;
  job.folder = input.folder;
  job.tag = input.tag;
  job.leads = leads(input);
  job.reports = world_.rank() == 0;
  job.shard = shard_name(world_.rank(), world_.size());
  job.manifest = plan_manifest(input);
  if (!input.model.mesh().shape().holds_parts()) {
    if (job.leads) job.manifest.tensors = plan_tensors(input);
  } else if (const auto tensors = plan_tensors(input); !tensors.empty()) {
    job.own_tensors = to_json(tensors);
    job.own_aliases = job.manifest.aliases;
  }
  job.retention = input.options.retention;
  job.sets_latest = input.options.sets_latest;
  job.plan = std::move(plan);
  if (job.reports && !said_sizes_) log_info("a checkpoint takes {}", describe_sizes(input));
  said_sizes_ = true;

  if (input.options.in_background) {
    if (!line_) line_ = world_.for_another_thread("checkpoint");
    job.line = line_.get();
    job.image_bytes = copy_into(image_, job.plan);
    job.plan = {};
    thread_ = std::thread([this, &job] {
      run(job);
      job.done = true;
    });
  } else {
    job.line = &world_;
    run(job);
    if (job.failure) {
      const Error error(ErrorKind::kMachine, *job.failure);
      job_.reset();
      throw error;
    }
  }
  return (input.folder / input.tag).string();
}

void Saver::throw_failure() {
  if (job_ && thread_.joinable() && job_->done) finish();
}

void Saver::finish() {
  if (!thread_.joinable()) return;
  thread_.join();
  const auto failure = job_->failure;
  job_.reset();
  if (failure) throw SaveFailed(ErrorKind::kMachine, *failure);
}

}  // namespace tessera::checkpoint
