#include "tessera/comm/nccl/device_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/nccl/communicator.h"
#include "tessera/comm/nccl/library.h"
#include "tessera/comm/nccl/nccl_exchange.h"
#include "tessera/comm/nccl/torch_library.h"

namespace tessera::comm::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kBetweenLooks{5};
constexpr const char* kOff = "it is not wanted";

std::string place_key(int rank) { return fmt::format("nccl/place of rank {}", rank); }

// Which one of the host's: the process may see some of them only, and counts those.
std::string name_of(at::Device device) {
  std::string index = std::to_string(static_cast<int>(device.index()));
  if (device.is_cuda()) {
    std::istringstream visible(env_text("CUDA_VISIBLE_DEVICES").value_or(""));
    std::string each;
    for (int i = 0; std::getline(visible, each, ','); ++i) {
      if (i == device.index()) index = each;
    }
  }
  return fmt::format("{}:{}", at::DeviceTypeName(device.type(), /*lower_case=*/true), index);
}

// Empty where the library serves it in this process.
std::string refusal_of_library() {
  if (!library_name()) return kOff;
  try {
    library_of_this_process();
    return "";
  } catch (const Error& error) {
    return error.report().what;
  }
}

// What a rank says of itself.
struct Told {
  std::string refusal;  // empty: NCCL serves it
  std::string device;   // "cuda:0 of gpu01"
  std::string kernel;   // of that host
  std::string through;  // what NCCL is there

  std::string text() const { return fmt::format("{}\n{}\n{}\n{}", refusal, device, kernel, through); }
  static Told from(const std::string& text) {
    Told told;
    std::istringstream lines(text);
    for (std::string* const line : {&told.refusal, &told.device, &told.kernel, &told.through})
      std::getline(lines, *line);
    return told;
  }
};

Told told_here(at::Device device, bool takes_torchs) {
  std::string kernel;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, kernel);
  const std::string host = env_text("TESSERA_HOST").value_or(host_name());
  return {.refusal = takes_torchs ? "" : refusal_of_library(),
          .device = fmt::format("{} of {}", name_of(device), host),
          .kernel = kernel,
          .through = takes_torchs ? "torch's own group" : "TESSERA_NCCL_LIBRARY"};
}

}  // namespace

DeviceLinks::DeviceLinks(c10::intrusive_ptr<c10d::Store> store, Options options)
    : store_(std::move(store)), options_(options) {}

std::unique_ptr<Exchange> DeviceLinks::exchange_of(const std::vector<int>& members, at::Device device,
                                                   const std::shared_ptr<std::atomic<int64_t>>& bytes_sent) {
  const std::lock_guard lock(mutex_);
  if (!connection_) say_where(device);
  if (own_refusal_ == kOff) return nullptr;
  const std::string refusal = refusal_of(members);
  if (refusal.empty()) {
    const auto own = std::find(members.begin(), members.end(), options_.rank) - members.begin();
    return make_nccl_exchange(run_, {members, static_cast<int>(own), options_.sums_in_rank_order}, bytes_sent);
  }
  if (members.front() == options_.rank && !std::exchange(has_warned_, true)) {
    log_warning("NCCL does not connect these ranks: {}. Their tensors go through host memory, which is slower",
                refusal);
  }
  return nullptr;
}

void DeviceLinks::require_well() {
  const std::lock_guard lock(mutex_);
  if (run_) run_->require_well();
}

bool DeviceLinks::takes_torchs() const { return options_.group_of_torch && !library_name() && !is_off(); }

void DeviceLinks::say_where(at::Device device) {
  connection_ = std::make_shared<StoreConnection>(*store_);
  const Told own = told_here(device, takes_torchs());
  own_refusal_ = own.refusal;
  connection_->set(place_key(options_.rank), own.text());
  if (own.refusal == kOff && device.is_cuda() && options_.rank == 0) {
    log_info(
        "tensors on CUDA devices go through host memory. TESSERA_NCCL_LIBRARY=libnccl.so.2 lets NCCL connect the "
        "devices, which has not run on a GPU yet: compare the losses of a few steps");
  }
  if (!own.refusal.empty()) return;
  if (takes_torchs() && options_.rank == 0) {
    log_info(
        "tensors on devices go through torch's own NCCL group, with which this has not run on a GPU yet: compare the "
        "losses of a few steps. TESSERA_NCCL_LIBRARY=off sends them through host memory, which is slower");
  }
  run_ = std::make_shared<Run>(
      takes_torchs() ? library_of_torch(options_.group_of_torch, device, store_) : library_of_this_process(),
      connection_, options_.timeout);
  log_debug("{} serves {}", run_->library.name, own.device);
}

// The same on every member.
std::string DeviceLinks::refusal_of(const std::vector<int>& members) {
  const auto end = steady_clock::now() + options_.timeout;
  std::map<std::pair<std::string, std::string>, int> rank_at;
  std::string through;
  std::string sharing;
  for (const int rank : members) {
    while (!connection_->has(place_key(rank))) {
      if (steady_clock::now() > end) throw PeerFailure(rank, /*late=*/true, "it has had no tensor on a device yet");
      std::this_thread::sleep_for(kBetweenLooks);
    }
    const Told told = Told::from(connection_->get(place_key(rank)));
    if (!told.refusal.empty()) return fmt::format("rank {}: {}", rank, told.refusal);
    if (through.empty()) through = told.through;
    if (told.through != through) {
      return fmt::format("rank {} has NCCL from {}, and rank {} from {}", members.front(), through, rank, told.through);
    }
    const auto [other, is_first] = rank_at.try_emplace({told.device, told.kernel}, rank);
    if (!is_first && sharing.empty())
      sharing = fmt::format("ranks {} and {} have the same device, {}", other->second, rank, told.device);
  }
  if (!sharing.empty()) {
    throw Error(
        ErrorKind::kUsage,
        {sharing, "NCCL",
         "start as many ranks on a host as it has devices, each with its own (LOCAL_RANK, CUDA_VISIBLE_DEVICES); "
         "with TESSERA_NCCL_LIBRARY=off ranks may share one, and go through host memory, which is slower"});
  }
  return "";
}

}  // namespace tessera::comm::nccl
