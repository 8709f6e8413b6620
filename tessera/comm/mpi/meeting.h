// The processes of one MPI job before they have a store in common: enough to tell where it is.
#pragma once

#include <chrono>
#include <string>

#include "tessera/comm/mpi/library.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::comm::mpi {

class Meeting {
 public:
  // Collective, as are the others. ErrorKind::kUsage: the world is not the MPI job.
  Meeting(const World& world, std::chrono::milliseconds timeout);
  ~Meeting();

  bool is_one_host();

  // Rank 0's text, on every rank. Short.
  std::string text_of_rank_0(std::string text);

 private:
  Library& library_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  Group group_;
};

}  // namespace tessera::comm::mpi
