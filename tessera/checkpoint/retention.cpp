#include "tessera/checkpoint/retention.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

void keep_newest(const fs::path& folder, int64_t keep_last) {
  if (keep_last <= 0) return;
  constexpr std::string_view kPrefix = "global_step";
  const std::string latest = read_latest(folder);
  std::vector<std::pair<int64_t, fs::path>> checkpoints;
  std::vector<fs::path> doomed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory() || !name.starts_with(kPrefix)) continue;
    int64_t step = 0;
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (parsed.ec != std::errc()) continue;
    if (parsed.ptr == end) {
      if (name != latest) checkpoints.emplace_back(step, entry.path());
    } else if (name.ends_with(".saving") || name.ends_with(".old")) {
      doomed.push_back(entry.path());
    }
  }
  std::sort(checkpoints.rbegin(), checkpoints.rend());
  for (size_t i = static_cast<size_t>(keep_last) - 1; i < checkpoints.size(); ++i)
    doomed.push_back(checkpoints[i].second);
  for (const fs::path& path : doomed) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) log_warning("the old checkpoint {} could not be removed: {}", path.string(), error.message());
  }
}

}  // namespace tessera::checkpoint
