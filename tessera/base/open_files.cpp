#include "tessera/base/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {

void require_open_files(uint64_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count) return;
  limit.rlim_cur = std::min<rlim_t>(count, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= count) return;
  throw Error(ErrorKind::kMachine,
              {fmt::format("a process may have {} files and connections open here, and this one needs about {}",
                           limit.rlim_max, count),
               "the limits of this process", fmt::format("raise the limit: ulimit -n {}", count)});
}

}  // namespace tessera
