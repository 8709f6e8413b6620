#include "tessera/cli/restart_flags.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::cli {

void add_restart_flags(CLI::App& command, launch::Restarts& restarts) {
  command
      .add_option("--max-restarts,--max_restarts", restarts.at_most,
                  "Start again when a rank fails, so many times at most; not after exit code 2")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--min-nproc,--min_nproc", restarts.fewest_ranks,
                  "Start again without a rank that was killed, as where memory ran out, but with no fewer ranks than "
                  "this (default: with as many as before)")
      ->check(CLI::PositiveNumber);
}

void check_restart_flags(const launch::Restarts& restarts, int nproc) {
  if (restarts.fewest_ranks == 0) return;
  if (restarts.at_most == 0) {
    throw Error(ErrorKind::kUsage, {"--min-nproc is for runs that are started again, and this is not one", "",
                                    "add --max-restarts, or leave it out"});
  }
  if (restarts.fewest_ranks > nproc) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("--min-nproc {} is more than the {} ranks that are started", restarts.fewest_ranks, nproc),
                 "", "use at most the number of ranks"});
  }
}

}  // namespace tessera::cli
