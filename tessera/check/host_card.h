// What a rank says of itself and of its host, and what is wrong where ranks say different things.
//
// Cards travel as texts (Group::exchange_texts). Comparing them is arithmetic, so that every case can be tried on one
// machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/check/finding.h"

namespace tessera::check {

struct HostCard {
  int rank = 0;
  std::string host;      // TESSERA_HOST, else the host's name: for people
  std::string identity;  // the same for ranks that share a kernel, a network and a user (comm/shm/peer_links.h)
  std::string version;   // of Tessera
  std::string libtorch;
  std::string instructions;  // "avx512f": of Tessera's loops
  int64_t devices = 0;
  uint64_t memory_bytes = 0;  // of the machine, or what its control group allows
  uint64_t available_bytes = 0;
  uint64_t shared_memory_bytes = 0;  // of /dev/shm
  uint64_t free_shared_memory_bytes = 0;
  std::vector<std::string> warnings = {};  // of this host: limits, memory, processors (base/host_facts.h)
};

HostCard own_card(int rank);

std::string card_text(const HostCard& card);
HostCard card_of(const std::string& text);

// "rank 3 (node2)".
std::string rank_name(const HostCard& card);

// The first rank of each host, lowest first; `cards` are in rank order.
std::vector<int> first_ranks(const std::vector<HostCard>& cards);

// Below this a Bus error is a matter of time: one batch of a data loader or one of NCCL's connections takes more.
inline constexpr uint64_t kLeastSharedMemory = 32U << 20;

// Other versions of Tessera or LibTorch than rank 0's, and a /dev/shm that is full or tiny, are problems; other
// instructions, other numbers of devices and the hosts' own warnings are warnings.
Findings compare_cards(const std::vector<HostCard>& cards);

}  // namespace tessera::check
