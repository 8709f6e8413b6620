// tessera bench io: how fast a folder's drive can be written and read, and the aio block that does it best.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/cli/commands.h"
#include "tessera/storage/aligned_buffer.h"
#include "tessera/storage/io_queue.h"
#include "tessera/storage/scratch_file.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;
using Seconds = std::chrono::duration<double>;

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr std::array kBlockBytes = {128 * kKiB, 256 * kKiB, 512 * kKiB, kMiB, 4 * kMiB};
constexpr std::array kDepths = {4, 8, 16, 32};
constexpr std::array kThreads = {1, 2};
constexpr uint64_t kLeastBytes = 16 * kMiB;
constexpr double kSearchSeconds = 40;  // for one pass over all settings; the finalists and the first write come on top
constexpr size_t kFinalists = 4;
constexpr int kRounds = 3;  // for each finalist

struct BenchOptions {
  std::string folder;
  std::string size = "512M";
  bool json = false;
};

// Bytes a second; the medians of what was measured.
struct Rates {
  double write = 0, read = 0;
  double together() const { return 1 / (1 / write + 1 / read); }  // a byte goes out and comes back
};

struct Setting {
  storage::IoOptions options;
  std::vector<double> writes = {}, reads = {};  // bytes a second

  Rates rates() const { return {median(writes), median(reads)}; }
  static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
};

// "512M", "2G": powers of 1024, as fio and dd count.
uint64_t bytes_of(const std::string& text) {
  const std::map<std::string, uint64_t> units = {{"", 1}, {"K", kKiB}, {"M", kMiB}, {"G", 1024 * kMiB}};
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  const auto unit = units.find(text.substr(digits));
  const uint64_t bytes = digits == 0 || digits > 9 || unit == units.end() ? 0 : std::stoull(text) * unit->second;
  if (bytes < kLeastBytes) {
    throw Error(ErrorKind::kUsage,
                {"'" + text + "' is not a size of at least 16M", "--size", "use a size such as 512M or 2G"});
  }
  return bytes / storage::kPageBytes * storage::kPageBytes;
}

// Writes and reads the first bytes of a file, all of whose blocks are on the disk.
class Drive {
 public:
  Drive(const std::string& folder, uint64_t bytes) : file_(folder, "--path") {
    struct statvfs info {};
    statvfs(folder.c_str(), &info);
    const uint64_t room = info.f_bavail * info.f_frsize;
    if (info.f_blocks > 0 && room < bytes) {  // some do not count
      throw Error(ErrorKind::kMachine,
                  {fmt::format("--size is {}, but there is room for only {}", format_bytes(bytes), format_bytes(room)),
                   folder, "use a smaller --size, free some space or choose another folder"});
    }
    file_.reserve(bytes);
    buffer_.reserve(bytes);
    uint64_t random = 1;  // a drive may store zeros without writing them
    for (size_t at = 0; at < bytes; at += sizeof random) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      std::memcpy(buffer_.data() + at, &random, sizeof random);
    }
  }

  bool is_direct() const { return file_.is_direct(); }

  double write(const storage::IoOptions& options, uint64_t bytes) {
    storage::IoQueue queue(options);
    const auto begin = std::chrono::steady_clock::now();
    queue.start_write(file_.file(), buffer_.data(), bytes, 0);
    queue.wait_all();
    if (!is_direct()) fdatasync(file_.file().fd);
    return rate(bytes, begin);
  }

  double read(const storage::IoOptions& options, uint64_t bytes) {
    storage::IoQueue queue(options);
    if (!is_direct()) posix_fadvise(file_.file().fd, 0, 0, POSIX_FADV_DONTNEED);
    const auto begin = std::chrono::steady_clock::now();
    queue.start_read(file_.file(), buffer_.data(), bytes, 0);
    queue.wait_all();
    return rate(bytes, begin);
  }

 private:
  static double rate(uint64_t bytes, std::chrono::steady_clock::time_point begin) {
    return static_cast<double>(bytes) / Seconds(std::chrono::steady_clock::now() - begin).count();
  }

  storage::ScratchFile file_;
  storage::AlignedBuffer buffer_;
};

void measure(Drive& drive, Setting& setting, uint64_t bytes) {
  setting.writes.push_back(drive.write(setting.options, bytes));
  setting.reads.push_back(drive.read(setting.options, bytes));
}

std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (const uint64_t block : kBlockBytes) {
    for (const int depth : kDepths) {
      for (const int threads : kThreads) {
        settings.push_back({.options = {.block_bytes = block, .depth = depth, .threads = threads}});
      }
    }
  }
  return settings;
}

// Every setting once, with as many bytes as the time allows, then the best ones again; the best one of all comes back.
const Setting& search(Drive& drive, uint64_t bytes, std::vector<Setting>& settings) {
  Setting first{.options = {.depth = 32}};
  measure(drive, first, bytes);
  const double seconds_a_byte = 1 / first.rates().together();
  const double affordable = kSearchSeconds / static_cast<double>(settings.size()) / seconds_a_byte;
  const uint64_t part =
      std::clamp(static_cast<uint64_t>(affordable), kLeastBytes, bytes) / storage::kPageBytes * storage::kPageBytes;
  for (Setting& setting : settings) measure(drive, setting, part);

  std::vector<Setting*> best;
  for (Setting& setting : settings) best.push_back(&setting);
  const auto faster = [](const Setting* a, const Setting* b) { return a->rates().together() > b->rates().together(); };
  std::sort(best.begin(), best.end(), faster);
  best.resize(kFinalists);
  for (int round = 1; round < kRounds; ++round) {
    for (Setting* setting : best) measure(drive, *setting, part);
  }
  return **std::min_element(best.begin(), best.end(), faster);
}

Json aio_block(const storage::IoOptions& options) {
  return {{"block_size", options.block_bytes},
          {"queue_depth", options.depth},
          {"intra_op_parallelism", options.threads},
          {"single_submit", options.single_submit},
          {"overlap_events", options.overlap_events}};
}

std::string block_text(uint64_t bytes) {
  return bytes < kMiB ? fmt::format("{}K", bytes / kKiB) : fmt::format("{}M", bytes / kMiB);
}

void print_table(const std::vector<Setting>& settings) {
  fmt::print("block_size  queue_depth  intra_op_parallelism  write GB/s  read GB/s\n");
  for (const Setting& setting : settings) {
    const storage::IoOptions& options = setting.options;
    const Rates rates = setting.rates();
    fmt::print("{:>10}  {:>11}  {:>20}  {:>10.3f}  {:>9.3f}\n", block_text(options.block_bytes), options.depth,
               options.threads, rates.write / 1e9, rates.read / 1e9);
  }
}

void bench_io(const BenchOptions& options) {
  const uint64_t bytes = bytes_of(options.size);
  Drive drive(options.folder, bytes);
  const std::string engine = storage::IoQueue().engine();
  if (!drive.is_direct()) {
    log_warning("{}: its file system has no direct I/O, so the page cache affects the measurements", options.folder);
  }
  std::vector<Setting> settings = all_settings();
  const Setting& best = search(drive, bytes, settings);
  if (!options.json) {
    fmt::print("{}: {}, {}, GB/s of 10^9 bytes\n\n", options.folder, drive.is_direct() ? "direct I/O" : "buffered",
               engine);
    print_table(settings);
    const Rates rates = best.rates();
    fmt::print("\nbest setting, median of {} rounds: write {:.3f} GB/s, read {:.3f} GB/s\n", kRounds, rates.write / 1e9,
               rates.read / 1e9);
    fmt::print("\"aio\": {}\n", aio_block(best.options).dump(2));
    return;
  }
  Json result = {{"path", options.folder}, {"direct", drive.is_direct()}, {"engine", engine}};
  for (const Setting& setting : settings) {
    Json row = aio_block(setting.options);
    const Rates rates = setting.rates();
    row.update({{"write_bytes_per_s", std::llround(rates.write)}, {"read_bytes_per_s", std::llround(rates.read)}});
    result["settings"].push_back(row);
  }
  result["best"] = {{"aio", aio_block(best.options)}};
  fmt::print("{}\n", result.dump(2));
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Measure this machine");
  command->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  CLI::App* io = command->add_subcommand(
      "io", "Write and read a file with many aio settings (about a minute) and print the best one for a ds_config");
  io->add_option("--path", options->folder, "Folder to measure, e.g. that of nvme_path; nothing is left in it")
      ->required();
  io->add_option("--size", options->size, "Size of the file, e.g. 512M or 2G; takes the same amount of memory")
      ->capture_default_str();
  io->add_flag("--json", options->json, "Print JSON");
  io->callback([options] { bench_io(*options); });
}

}  // namespace tessera::cli
