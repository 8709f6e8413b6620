#include "tessera/plan/memory_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"

namespace tessera::plan {
namespace {

namespace fs = std::filesystem;

uint64_t unsigned_bytes(int64_t bytes) { return static_cast<uint64_t>(std::max<int64_t>(0, bytes)); }

// What is short, as a sentence; empty: nothing is.
std::string shortage(const MemoryCheck& check, const MemoryNeed& need) {
  const uint64_t ranks = unsigned_bytes(check.ranks_of_host);
  const uint64_t memory =
      unsigned_bytes(need.certain_bytes(Place::kHost) + (check.setup.on_cpu ? need.certain_bytes(Place::kDevice) : 0));
  const uint64_t disk = unsigned_bytes(need.certain_bytes(Place::kNvme));
  const std::string each = ranks == 1 ? "" : fmt::format(" for {} ranks at {} each", ranks, format_bytes(memory));
  if (check.room.process_left && memory > *check.room.process_left) {
    return fmt::format("a rank needs at least {}, but its process limit (ulimit) leaves {}", format_bytes(memory),
                       format_bytes(*check.room.process_left));
  }
  if (check.room.available > 0 && memory * ranks > check.room.available + check.room.free_swap) {
    return fmt::format("the run needs at least {}{}, but this host has {} left", format_bytes(memory * ranks), each,
                       format_bytes(check.room.available + check.room.free_swap));
  }
  if (disk * ranks > check.room.disk && disk > 0) {
    return fmt::format("the run needs {} on the disk of {}, which has {} left", format_bytes(disk * ranks),
                       check.room.nvme_path, format_bytes(check.room.disk));
  }
  return "";
}

std::string what_would_fit(const MemoryCheck& check) {
  const PlanInput input{.model = check.model,
                        .wanted = check.setup,
                        .samples_of_a_rank = check.samples_of_a_rank,
                        .share = share_of(check.room, check.ranks_of_host),
                        .refusal = refusal_of_this_version};
  const std::optional<Plan> plan = choose_plan(input);
  if (!plan) {
    return "no stage fits on this host; use more hosts, or fewer ranks on each (tessera estimate --model FOLDER lists "
           "what each stage needs)";
  }
  std::string text = fmt::format("{} with a micro batch of {}", describe(plan->setup), plan->setup.micro_batch);
  if (plan->setup.dtypes.compute != check.setup.dtypes.compute) text += " in bf16";
  if (plan->setup.activation_checkpointing) text += " and activation checkpointing";
  return fmt::format("{} would fit: {} per rank; tessera estimate --model FOLDER --plan{} writes that configuration",
                     text, format_bytes(unsigned_bytes(plan->need.bytes(Place::kDevice))),
                     plan->need.bytes(Place::kNvme) > 0 ? " --nvme FOLDER" : "");
}

}  // namespace

MachineRoom machine_room(const std::string& nvme_path) {
  const HostMemory host = host_memory();
  MachineRoom room{.available = host.available,
                   .free_swap = host.free_swap,
                   .process_left = left_of_process_limits(),
                   .nvme_path = nvme_path};
  if (nvme_path.empty()) return room;
  // The folder may be made later: the nearest one that exists lies on the same disk.
  fs::path folder = fs::absolute(nvme_path);
  while (!fs::exists(folder) && folder.has_relative_path()) folder = folder.parent_path();
  std::error_code error;
  const fs::space_info disk = fs::space(folder, error);
  if (!error) room.disk = disk.available;
  return room;
}

RankShare share_of(const MachineRoom& room, int64_t ranks_of_host) {
  const auto part = [ranks_of_host](uint64_t bytes) {
    return static_cast<int64_t>(bytes / unsigned_bytes(ranks_of_host));
  };
  RankShare share{.device = part(room.available),
                  .host = part(room.available),
                  .nvme = part(room.disk),
                  .nvme_path = room.nvme_path};
  if (room.process_left) share.device = std::min(share.device, static_cast<int64_t>(*room.process_left));
  return share;
}

void check_fits(const MemoryCheck& check) {
  const MemoryNeed need = memory_need(check.model, check.setup);
  const std::string what = shortage(check, need);
  if (what.empty()) return;
  const std::string all = fmt::format("{} ({} per rank with activations and buffers)", what,
                                      format_bytes(unsigned_bytes(need.bytes(Place::kDevice))));
  throw Error(ErrorKind::kMachine, {all, fmt::format("{}, {}", check.where, describe(check.setup)),
                                    what_would_fit(check) + "; set training.memory_check: false to run anyway"});
}

}  // namespace tessera::plan
