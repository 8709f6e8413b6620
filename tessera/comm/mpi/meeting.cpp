#include "tessera/comm/mpi/meeting.h"

#include <fmt/format.h>

#include <array>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::comm::mpi {
namespace {

constexpr size_t kLongestText = 1024;
constexpr int kTag = 0;

Group make_group(Library& library, const World& world) {
  const Job& job = library.job();
  if (job.size != world.size || job.rank != world.rank) {
    throw Error(
        ErrorKind::kUsage,
        {fmt::format("this is rank {} of {} according to the environment, but rank {} of {} in its MPI job", world.rank,
                     world.size, job.rank, job.size),
         "the environment", "start all ranks with one mpirun, that of the MPI which TESSERA_MPI names if it is set"});
  }
  std::vector<int> everybody(world.size);
  std::iota(everybody.begin(), everybody.end(), 0);
  return library.make_group(everybody);
}

}  // namespace

Meeting::Meeting(const World& world, std::chrono::milliseconds timeout)
    : library_(Library::of_this_process(timeout)),
      rank_(world.rank),
      size_(world.size),
      timeout_(timeout),
      group_(make_group(library_, world)) {}

Meeting::~Meeting() {
  try {
    library_.free_group(group_);
  } catch (const Error& error) {
    log_debug("{}", error.what());
  }
}

bool Meeting::is_one_host() { return library_.is_one_host(group_); }

std::string Meeting::text_of_rank_0(std::string text) {
  TESSERA_INVARIANT(text.size() <= kLongestText);
  if (rank_ != 0) {
    text.resize(kLongestText);
    Request request = library_.start_receive(std::as_writable_bytes(std::span(text)), {group_, 0, kTag});
    try {
      text.resize(library_.wait(request, Deadline(timeout_, "rank 0 to say where the ranks meet")));
    } catch (const Error&) {
      library_.cancel(request);  // the text goes out of scope
      throw;
    }
    return text;
  }
  for (int rank = 1; rank < size_; ++rank) {
    Request request = library_.start_send(std::as_bytes(std::span(text)), {group_, rank, kTag});
    library_.wait(request, Deadline(timeout_, fmt::format("rank {} to hear where the ranks meet", rank)));
  }
  return text;
}

}  // namespace tessera::comm::mpi
