#include "tessera/storage/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "tessera/base/atomic_file.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/unique_fd.h"

namespace tessera::storage {
namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;

namespace {

constexpr const char* kFileName = ".tessera.lock";
constexpr milliseconds kTouchEvery{2'500};
constexpr milliseconds kWatchFor = 4 * kTouchEvery;

struct Holder {
  std::string host;
  std::string boot;  // of the host's kernel: names of hosts are not always different
  int64_t pid = 0;
  std::string since;
};

std::string boot_of_this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts = {};
  std::array<char, 32> text;
  return {text.data(), std::strftime(text.data(), text.size(), "%F %T UTC", gmtime_r(&seconds, &parts))};
}

Holder this_process() { return {.host = host_name(), .boot = boot_of_this_host(), .pid = getpid(), .since = now()}; }

std::string to_text(const Holder& holder) {
  return json{{"host", holder.host}, {"boot", holder.boot}, {"pid", holder.pid}, {"since", holder.since}}.dump(
             -1, ' ', false, json::error_handler_t::replace) +
         "\n";
}

std::string text_of(int fd) {
  std::array<char, 1024> bytes;
  const ssize_t got = pread(fd, bytes.data(), bytes.size(), 0);
  return {bytes.data(), static_cast<size_t>(std::max<ssize_t>(0, got))};
}

// Nothing where the text is empty or no holder's.
std::optional<Holder> holder_of(const std::string& text) {
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  try {
    return Holder{parsed.at("host"), parsed.at("boot"), parsed.at("pid"), parsed.at("since")};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::string name_of(const std::optional<Holder>& holder) {
  if (!holder) return "another process";
  return fmt::format("process {} on host {}, since {}", holder->pid, holder->host, holder->since);
}

[[noreturn]] void refuse(const std::string& what, const fs::path& path) {
  throw Error(ErrorKind::kUsage,
              {what, path.string(), "wait until it has ended, stop it, or save into another folder"});
}

[[noreturn]] void refuse_held(const std::optional<Holder>& holder, const fs::path& path) {
  refuse("another run saves into this folder: " + name_of(holder), path);
}

// Nanoseconds; asks the server where the file lies on one.
int64_t touched_at(int fd) {
  struct statx found = {};
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_MTIME, &found) != 0) return 0;
  return static_cast<int64_t>(found.stx_mtime.tv_sec) * 1'000'000'000 + found.stx_mtime.tv_nsec;
}

// Whether somebody touches the file. No clocks are compared, as hosts' differ.
bool is_touched(int fd) {
  const int64_t before = touched_at(fd);
  const auto end = std::chrono::steady_clock::now() + kWatchFor;
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kTouchEvery / 10);
    if (touched_at(fd) != before) return true;
  }
  return false;
}

enum class Place { kSame, kMissing, kOther };

// What lies at the path, beside the file that is open.
Place place_of(int fd, const fs::path& path) {
  struct stat open_file = {}, named = {};
  if (lstat(path.c_str(), &named) != 0) return Place::kMissing;
  if (fstat(fd, &open_file) != 0) return Place::kOther;
  return open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev ? Place::kSame : Place::kOther;
}

struct LockedFile {
  UniqueFd fd;
  bool locked = false;  // false: this file system knows no locks
};

LockedFile lock_file(const fs::path& path) {
  constexpr int kAttempts = 100;  // each one that fails met a holder that let go just then
  for (int i = 0; i < kAttempts; ++i) {
    LockedFile file{UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644))};
    struct stat found = {};
    if (!file.fd.open()) machine_refused("the folder's lock cannot be opened", errno, path);
    if (fstat(file.fd.get(), &found) != 0 || !S_ISREG(found.st_mode)) {
      machine_refused("the folder's lock is no file", EINVAL, path);
    }
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    file.locked = fcntl(file.fd.get(), F_SETLK, &whole) == 0;
    if (!file.locked && (errno == EACCES || errno == EAGAIN)) refuse_held(holder_of(text_of(file.fd.get())), path);
    if (place_of(file.fd.get(), path) == Place::kSame) return file;
  }
  refuse_held(std::nullopt, path);
}

}  // namespace

class FolderLock::Held {
 public:
  explicit Held(fs::path path);
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // False where somebody removed the file.
  bool stands() const;
  bool is_of_this_process() const { return pid_ == getpid(); }

 private:
  struct Touching {
    std::mutex mutex;
    std::condition_variable changed;
    bool ends = false;
    std::thread thread;
  };
  static void touch_until_it_ends(Touching& touching, int fd);

  fs::path path_;
  pid_t pid_ = getpid();
  UniqueFd fd_;
  std::string text_;
  std::unique_ptr<Touching> touching_ = std::make_unique<Touching>();
};

FolderLock::Held::Held(fs::path path) : path_(std::move(path)) {
  LockedFile file = lock_file(path_);
  const Holder own = this_process();
  const std::string there = text_of(file.fd.get());
  const std::optional<Holder> before = holder_of(there);
  if (before && (!file.locked || before->boot != own.boot)) {
    log_info("{} may still save into {}: watching it for {}", name_of(before), path_.parent_path().string(),
             format_duration(kWatchFor));
    if (is_touched(file.fd.get()) || text_of(file.fd.get()) != there) refuse_held(before, path_);
  }
  if (before) log_info("took {} over from {}, which has ended", path_.string(), name_of(before));
  text_ = to_text(own);
  if (ftruncate(file.fd.get(), 0) != 0 ||
      pwrite(file.fd.get(), text_.data(), text_.size(), 0) != static_cast<ssize_t>(text_.size())) {
    machine_refused("the folder's lock cannot be written", errno, path_);
  }
  fd_ = std::move(file.fd);
  touching_->thread = std::thread([&touching = *touching_, fd = fd_.get()] { touch_until_it_ends(touching, fd); });
}

FolderLock::Held::~Held() {
  if (!is_of_this_process()) {  // a fork's copy, without the thread; a condition variable would wait for it
    static_cast<void>(touching_.release());
    return;
  }
  {
    const std::lock_guard lock(touching_->mutex);
    touching_->ends = true;
    touching_->changed.notify_all();
  }
  touching_->thread.join();
  if (place_of(fd_.get(), path_) == Place::kSame && text_of(fd_.get()) == text_) unlink(path_.c_str());
}

void FolderLock::Held::touch_until_it_ends(Touching& touching, int fd) {
  std::unique_lock lock(touching.mutex);
  while (!touching.changed.wait_for(lock, kTouchEvery, [&] { return touching.ends; })) futimens(fd, nullptr);
}

bool FolderLock::Held::stands() const {
  const Place place = place_of(fd_.get(), path_);
  if (place == Place::kMissing) return false;
  const std::string there = text_of(fd_.get());
  if (place == Place::kSame && there == text_) return true;
  refuse("another run took this folder over: " + name_of(holder_of(there)) + "; this process was stopped for long",
         path_);
}

struct FolderLock::Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Held>> held;  // by folder
};

FolderLock::Registry& FolderLock::registry() {
  static Registry all;
  return all;
}

FolderLock::FolderLock(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) folder_ = fs::canonical(folder, error).string();
  if (error) machine_refused("the folder cannot be created", error.value(), folder);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<Held>& held = all.held[folder_];
  if (!held || !held->is_of_this_process() || !held->stands()) {
    held = nullptr;
    held = std::make_shared<Held>(fs::path(folder_) / kFileName);
  }
  held_ = held;
}

FolderLock::~FolderLock() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.held.find(folder_);
  const bool is_current = found != all.held.end() && found->second == held_;
  held_ = nullptr;
  if (is_current && found->second.use_count() == 1) all.held.erase(found);
}

}  // namespace tessera::storage
