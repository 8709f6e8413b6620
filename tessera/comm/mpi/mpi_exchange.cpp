// Which rank of the MPI job each rank is, told through the store: a world may be a part of the job, in another order.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/comm/backends.h"
#include "tessera/comm/message_exchange.h"
#include "tessera/comm/mpi/library.h"
#include "tessera/comm/mpi/mpi_backend.h"
#include "tessera/comm/store/store_texts.h"

namespace tessera::comm {
namespace {

// Begins the text of a rank that cannot use MPI, which says so before it leaves, so that the others need not wait for
// it.
constexpr char kRefusal = '!';

std::vector<int> ranks_of_job(const BackendInput& input) {
  std::string own;
  std::optional<Error> failure;
  try {
    own = std::to_string(mpi::Library::of_this_process(input.timeout).job().rank);
  } catch (const Error& error) {
    own = kRefusal + error.report().what;
    failure = error;
  }
  std::vector<std::string> texts;
  try {
    const StartStep step{"mpi", "did not connect over MPI", fmt::format("rank {}", input.world.rank)};
    texts = exchange_texts_at_start(*input.store, step, input.world.rank, input.world.size, own, input.timeout);
  } catch (const Error&) {
    if (failure) throw *failure;
    throw;
  }
  if (failure) throw *failure;
  std::vector<int> ranks;
  for (const std::string& text : texts) {
    if (text.starts_with(kRefusal)) {
      throw Error(ErrorKind::kMachine, {fmt::format("rank {}: {}", ranks.size(), text.substr(1)), "TESSERA_BACKEND=mpi",
                                        "look at that rank's output"});
    }
    ranks.push_back(std::stoi(text));
  }
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw Error(ErrorKind::kUsage,
                {"the ranks do not belong to one MPI job", "TESSERA_BACKEND=mpi",
                 "start all ranks with one mpirun, that of the MPI which TESSERA_MPI names if it is set"});
  }
  return ranks;
}

}  // namespace

std::unique_ptr<Exchange> make_mpi_exchange(const BackendInput& input) {
  return make_message_exchange(mpi::make_backend(input.world.rank, ranks_of_job(input), input.timeout));
}

}  // namespace tessera::comm
