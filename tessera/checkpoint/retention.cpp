#include "tessera/checkpoint/retention.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/storage/atomic_dir.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "global_step";

// The N of "global_step<N>"; `rest` is what follows it.
std::optional<int64_t> step_of(const std::string& name, std::string& rest) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (parsed.ec != std::errc()) return std::nullopt;
  rest = std::string(parsed.ptr, end);
  return step;
}

bool is_left_over(const std::string& name) { return name.ends_with(".saving") || name.ends_with(".old"); }

// The newest one that was saved while the loss was finite; empty where there is none.
std::string newest_before_divergence(const fs::path& folder) {
  for (const std::string& tag : tags_of(folder)) {
    try {
      if (!read_manifest(folder / tag).diverged) return tag;
    } catch (const Error&) {  // damaged: no good to go on from
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> tags_of(const fs::path& folder) {
  struct Found {
    int64_t step;
    fs::file_time_type time;
    std::string tag;
  };
  std::vector<Found> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const fs::path manifest = entry.path() / "manifest.json";
    if (!entry.is_directory() || is_left_over(name) || !fs::exists(manifest)) continue;
    std::string rest;
    const auto step = step_of(name, rest);
    found.push_back({step && rest.empty() ? *step : -1, fs::last_write_time(manifest, error), name});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    if (a.step >= 0 && b.step >= 0 && a.step != b.step) return a.step > b.step;
    return std::pair(a.time, a.tag) > std::pair(b.time, b.tag);
  });
  std::vector<std::string> tags;
  for (const Found& each : found) tags.push_back(each.tag);
  return tags;
}

std::vector<std::string> prune(const fs::path& folder, const Retention& retention) {
  const std::string latest = read_latest(folder), best = read_best(folder);
  std::vector<std::pair<int64_t, std::string>> checkpoints;
  std::vector<std::string> doomed;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    std::string rest;
    const auto step = step_of(name, rest);
    if (!entry.is_directory() || !step) continue;
    if (is_left_over(name)) doomed.push_back(name);
    if (rest.empty() && name != latest && name != best) checkpoints.emplace_back(*step, name);
  }
  const auto kept = static_cast<size_t>(retention.keep_last > 0 ? retention.keep_last - 1 : INT64_MAX);
  if (checkpoints.size() > kept) {
    const std::string good = newest_before_divergence(folder);
    std::sort(checkpoints.rbegin(), checkpoints.rend());
    for (size_t i = kept; i < checkpoints.size(); ++i) {
      const auto& [step, tag] = checkpoints[i];
      const bool is_kept = retention.keep_every > 0 && step % retention.keep_every == 0;
      if (!is_kept && tag != good) doomed.push_back(tag);
    }
  }
  for (const std::string& tag : doomed) {
    fs::remove_all(folder / tag, error);
    if (error) log_warning("the old checkpoint {} could not be removed: {}", (folder / tag).string(), error.message());
  }
  return doomed;
}

std::string read_best(const fs::path& folder) { return read_tag(folder / "best_checkpoint"); }

void set_best(const fs::path& folder, const std::string& tag) {
  storage::write_file_atomically(folder / "best_checkpoint", tag + "\n");
}

}  // namespace tessera::checkpoint
