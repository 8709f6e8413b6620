#include "tessera/check/host_card.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/env.h"
#include "tessera/base/format.h"
#include "tessera/base/host_facts.h"
#include "tessera/base/host_memory.h"
#include "tessera/comm/shm/peer_links.h"
#include "tessera/engine/environment_facts.h"
#include "tessera/kernels/instruction_set.h"
#include "tessera/storage/device.h"

namespace tessera::check {
namespace {

constexpr const char* kSharedMemory = "/dev/shm";
constexpr const char* kStep = "hosts";

// The warning about /dev/shm is made here, where it is known how bad it is.
std::vector<std::string> other_warnings(std::vector<Fact> facts) {
  std::erase_if(facts, [](const Fact& fact) { return fact.topic == kSharedMemory; });
  return warnings_of(facts);
}

uint64_t quantity(const std::vector<Fact>& facts, const std::string& topic, const std::string& name) {
  for (const Fact& fact : facts) {
    if (fact.topic == topic && fact.name == name) return fact.number.value_or(0);
  }
  return 0;
}

Finding problem(const std::string& what, const std::string& fix) { return {Finding::Kind::kProblem, kStep, what, fix}; }

Finding warning(const std::string& what, const std::string& fix) { return {Finding::Kind::kWarning, kStep, what, fix}; }

// What is wrong with a host that `card` is the first rank of.
void add_findings_of_host(Findings& found, const HostCard& card) {
  const std::string free = format_bytes(card.free_shared_memory_bytes), all = format_bytes(card.shared_memory_bytes);
  if (card.shared_memory_bytes == 0) {
    found.push_back(problem(fmt::format("{} has no /dev/shm: data loaders and NCCL cannot work", card.host),
                            "mount a tmpfs on /dev/shm"));
  } else if (card.free_shared_memory_bytes < kLeastSharedMemory) {
    found.push_back(problem(
        fmt::format("/dev/shm of {} is full: {} of {} are free. A data loader's worker, or NCCL, that takes more "
                    "is ended by a Bus error (SIGBUS)",
                    card.host, free, all),
        "remove what killed processes left there (ls -l /dev/shm), or make it larger: docker run --shm-size=8g, or "
        "mount -o remount,size=8G /dev/shm"));
  } else {
    for (const std::string& text :
         warnings_of(shared_memory_facts(kSharedMemory, card.shared_memory_bytes, card.free_shared_memory_bytes))) {
      found.push_back(warning(fmt::format("{}: {}", card.host, text), ""));
    }
  }
  for (const std::string& text : card.warnings) found.push_back(warning(fmt::format("{}: {}", card.host, text), ""));
}

}  // namespace

HostCard own_card(int rank) {
  const std::vector<Fact> facts = host_facts();
  const HostMemory memory = host_memory();
  return {.rank = rank,
          .host = env_text("TESSERA_HOST").value_or(host_name()),
          .identity = comm::shm::host_identity(),
          .version = TESSERA_VERSION,
          .libtorch = engine::libtorch_version(),
          .instructions = kernels::instruction_set(),
          .devices = storage::device_count(c10::kCUDA),
          .memory_bytes = memory.limit,
          .available_bytes = memory.available,
          .shared_memory_bytes = quantity(facts, kSharedMemory, "size"),
          .free_shared_memory_bytes = quantity(facts, kSharedMemory, "free"),
          .warnings = other_warnings(facts)};
}

std::string card_text(const HostCard& card) {
  const nlohmann::json text = {{"rank", card.rank},
                               {"host", card.host},
                               {"identity", card.identity},
                               {"version", card.version},
                               {"libtorch", card.libtorch},
                               {"instructions", card.instructions},
                               {"devices", card.devices},
                               {"memory_bytes", card.memory_bytes},
                               {"available_bytes", card.available_bytes},
                               {"shared_memory_bytes", card.shared_memory_bytes},
                               {"free_shared_memory_bytes", card.free_shared_memory_bytes},
                               {"warnings", card.warnings}};
  return text.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

HostCard card_of(const std::string& text) {
  const nlohmann::json card = nlohmann::json::parse(text);
  return {.rank = card.at("rank"),
          .host = card.at("host"),
          .identity = card.at("identity"),
          .version = card.at("version"),
          .libtorch = card.at("libtorch"),
          .instructions = card.at("instructions"),
          .devices = card.at("devices"),
          .memory_bytes = card.at("memory_bytes"),
          .available_bytes = card.at("available_bytes"),
          .shared_memory_bytes = card.at("shared_memory_bytes"),
          .free_shared_memory_bytes = card.at("free_shared_memory_bytes"),
          .warnings = card.at("warnings")};
}

std::string rank_name(const HostCard& card) { return fmt::format("rank {} ({})", card.rank, card.host); }

std::vector<int> first_ranks(const std::vector<HostCard>& cards) {
  std::vector<int> ranks;
  std::set<std::string> seen;
  for (const HostCard& card : cards) {
    if (seen.insert(card.identity).second) ranks.push_back(card.rank);
  }
  return ranks;
}

Findings compare_cards(const std::vector<HostCard>& cards) {
  Findings found;
  const HostCard& first = cards.front();
  for (const HostCard& card : cards) {
    const auto differs = [&](const std::string& subject, const std::string& own, const std::string& of_rank_0) {
      return fmt::format("{} {} {}, {} {}", rank_name(card), subject, own, rank_name(first), of_rank_0);
    };
    if (card.version != first.version) {
      found.push_back(problem(differs("runs Tessera", card.version, first.version), "install one version everywhere"));
    }
    if (card.libtorch != first.libtorch) {
      found.push_back(
          problem(differs("runs with LibTorch", card.libtorch, first.libtorch), "install one version everywhere"));
    }
    if (card.instructions != first.instructions) {
      found.push_back(warning(differs("computes with", card.instructions, first.instructions),
                              "this works; the last bits of results may differ from rank to rank"));
    }
    if (card.devices != first.devices) {
      found.push_back(
          warning(differs("sees CUDA devices:", std::to_string(card.devices), std::to_string(first.devices)),
                  "look at nvidia-smi and CUDA_VISIBLE_DEVICES there"));
    }
  }
  for (const int rank : first_ranks(cards)) add_findings_of_host(found, cards[static_cast<size_t>(rank)]);
  return found;
}

}  // namespace tessera::check
