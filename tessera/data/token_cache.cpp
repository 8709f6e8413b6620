#include "tessera/data/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "tessera/base/atomic_file.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/log.h"
#include "tessera/base/unique_fd.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormatVersion = 1;  // of the files, and of what tokenising gives

// Sums.

class ContentSum {
 public:
  ContentSum() { XXH3_128bits_reset(state_.get()); }
  void add(const void* bytes, size_t count) { XXH3_128bits_update(state_.get(), bytes, count); }
  void add(const std::string& text) { add(text.data(), text.size()); }
  std::string text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_{XXH3_createState()};
};

void add_file(ContentSum& sum, const std::string& path) {
  std::ifstream file = open_input_file(path);
  std::vector<char> bytes(4U << 20);
  uint64_t total = 0;
  while (file) {
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    sum.add(bytes.data(), static_cast<size_t>(file.gcount()));
    total += static_cast<uint64_t>(file.gcount());
  }
  require_read_whole(file, path);
  sum.add(fmt::format("|{}|", total));  // so that bytes that go from one file to the next change it
}

std::string name_of_entry(const TokenKey& key) {
  ContentSum sum;
  sum.add(fmt::format("{} of Tessera {}|", kFormatVersion, TESSERA_VERSION));
  for (const std::string& path : key.files) add_file(sum, path);
  sum.add(key.options.dump());
  return sum.text();
}

// Of all but itself.
std::string sum_of(json facts) {
  facts.erase("sum");
  ContentSum sum;
  sum.add(facts.dump());
  return sum.text();
}

// Writing.

constexpr const char* kArrayFiles[] = {"tokens.bin", "offsets.bin", "targets.bin"};
constexpr const char* kFactsFile = "facts.json";

class ArrayFile {
 public:
  explicit ArrayFile(fs::path path)
      : path_(std::move(path)), fd_(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    if (!fd_.open()) machine_refused("tokenised samples cannot be kept", errno, path_);
  }

  void add(const void* bytes, size_t count) {
    buffer_.append(static_cast<const char*>(bytes), count);
    if (buffer_.size() >= kBuffer) flush();
  }

  // {"bytes": …, "sum": …}
  json finish() {
    flush();
    if (fsync(fd_.get()) != 0) machine_refused("tokenised samples cannot be kept", errno, path_);
    return {{"bytes", bytes_}, {"sum", sum_.text()}};
  }

 private:
  static constexpr size_t kBuffer = 1U << 20;

  void flush() {
    sum_.add(buffer_);
    bytes_ += buffer_.size();
    for (size_t done = 0; done < buffer_.size();) {
      const ssize_t wrote = write(fd_.get(), buffer_.data() + done, buffer_.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) machine_refused("tokenised samples cannot be kept", errno, path_);
      done += static_cast<size_t>(wrote);
    }
    buffer_.clear();
  }

  fs::path path_;
  UniqueFd fd_;
  std::string buffer_;
  ContentSum sum_;
  uint64_t bytes_ = 0;
};

class SampleWriter final : public TokenSink {
 public:
  explicit SampleWriter(fs::path folder)
      : folder_(std::move(folder)), tokens_(folder_ / kArrayFiles[0]), offsets_(folder_ / kArrayFiles[1]) {
    add_offset();
  }

  void add(std::span<const int32_t> tokens, std::span<const uint8_t> targets) override {
    tokens_.add(tokens.data(), tokens.size_bytes());
    if (!targets.empty() && !targets_) targets_.emplace(folder_ / kArrayFiles[2]);
    if (targets_) targets_->add(targets.data(), targets.size());
    count_ += tokens.size();
    add_offset();
  }

  void finish(const json& facts) {
    json all{{"facts", facts},
             {"format", kFormatVersion},
             {"files", {{kArrayFiles[0], tokens_.finish()}, {kArrayFiles[1], offsets_.finish()}}}};
    if (targets_) all["files"][kArrayFiles[2]] = targets_->finish();
    all["sum"] = sum_of(all);
    write_file_atomically(folder_ / kFactsFile, all.dump(1));
  }

 private:
  void add_offset() { offsets_.add(&count_, sizeof count_); }

  fs::path folder_;
  ArrayFile tokens_, offsets_;
  std::optional<ArrayFile> targets_;
  uint64_t count_ = 0;
};

// Reading.

class Mapping {
 public:
  Mapping(const fs::path& path, uint64_t bytes) : bytes_(bytes) {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    std::error_code failed;
    if (!fd.open() || fs::file_size(path, failed) != bytes || failed) return;
    void* const place = bytes == 0 ? nullptr : mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (place == MAP_FAILED) return;
    place_ = place;
    is_whole_ = true;
  }
  ~Mapping() {
    if (place_ != nullptr) munmap(place_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool is_whole() const { return is_whole_; }

  bool has_sum(const std::string& expected) const {
    constexpr size_t kPiece = 64U << 20;
    ContentSum sum;
    for (size_t at = 0; at < bytes_; at += kPiece) {
      const size_t count = std::min<size_t>(kPiece, bytes_ - at);
      sum.add(static_cast<const char*>(place_) + at, count);
      madvise(static_cast<char*>(place_) + at, count, MADV_DONTNEED);  // it stays in the page cache while there is room
    }
    return sum.text() == expected;
  }

  template <class T>
  std::span<const T> as() const {
    return {static_cast<const T*>(place_), bytes_ / sizeof(T)};
  }

 private:
  void* place_ = nullptr;
  uint64_t bytes_;
  bool is_whole_ = false;
};

// Null where the file is not as it was written.
std::shared_ptr<const Mapping> mapped(const fs::path& folder, const json& files, const char* name) {
  const json& file = files.at(name);
  auto mapping = std::make_shared<const Mapping>(folder / name, file.at("bytes").get<uint64_t>());
  return mapping->is_whole() && mapping->has_sum(file.at("sum").get<std::string>()) ? mapping : nullptr;
}

bool fit_together(const TokenArrays& arrays) {
  if (arrays.offsets.empty() || arrays.offsets.front() != 0 || arrays.offsets.back() != arrays.tokens.size())
    return false;
  if (!arrays.is_target.empty() && arrays.is_target.size() != arrays.tokens.size()) return false;
  return std::is_sorted(arrays.offsets.begin(), arrays.offsets.end());
}

// Nothing where the folder is not there, or damaged, which is said.
std::optional<CachedTokens> read_entry(const fs::path& folder, const std::string& what) {
  std::error_code failed;
  if (!fs::exists(folder / kFactsFile, failed)) return std::nullopt;
  const auto refused = [&](const std::string& why) {
    log_warning("{}: the samples in {} are damaged ({}) and are made anew", what, folder.string(), why);
    return std::nullopt;
  };
  try {
    const json all = read_json_file((folder / kFactsFile).string());
    if (all.at("sum") != sum_of(all)) return refused(kFactsFile);
    const json& files = all.at("files");
    std::vector<std::shared_ptr<const Mapping>> holders;
    for (const char* const name : kArrayFiles) {
      const bool may_lack = name == kArrayFiles[2] && !files.contains(name);
      holders.push_back(may_lack ? nullptr : mapped(folder, files, name));
      if (!may_lack && holders.back() == nullptr) return refused(name);
    }
    TokenArrays arrays{.tokens = holders[0]->as<int32_t>(), .is_target = {}, .offsets = holders[1]->as<uint64_t>()};
    if (holders[2]) arrays.is_target = holders[2]->as<uint8_t>();
    if (!fit_together(arrays)) return refused("its files do not go together");
    const auto holder = std::make_shared<std::vector<std::shared_ptr<const Mapping>>>(std::move(holders));
    return CachedTokens{TokenSamples(arrays, holder), all.at("facts")};
  } catch (const json::exception&) {
    return refused(kFactsFile);
  } catch (const Error& error) {
    return refused(error.report().what);
  }
}

// One process at a time.

class Turn {
 public:
  Turn(const fs::path& path, const fs::path& aside, const std::string& what)
      : path_(path), fd_(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644)) {
    if (!fd_.open()) machine_refused("tokenised samples cannot be kept", errno, path);
    wait(aside, what);
    const std::string own = fmt::format("process {} on host {}\n", getpid(), host_name());
    if (ftruncate(fd_.get(), 0) != 0 || pwrite(fd_.get(), own.data(), own.size(), 0) < 0) {
      machine_refused("tokenised samples cannot be kept", errno, path);
    }
  }

  bool is_exclusive() const { return is_exclusive_; }  // false where the file system knows no locks

 private:
  using Clock = std::chrono::steady_clock;

  std::string holder() const {
    std::array<char, 300> text{};
    const ssize_t got = pread(fd_.get(), text.data(), text.size(), 0);
    std::string name(text.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
    while (!name.empty() && name.back() == '\n') name.pop_back();
    return name.empty() ? "another process" : name;
  }

  static uint64_t bytes_in(const fs::path& folder) {
    uint64_t bytes = 0;
    for (const char* const name : kArrayFiles) {
      std::error_code failed;
      const uint64_t own = fs::file_size(folder / name, failed);
      bytes += failed ? 0 : own;
    }
    return bytes;
  }

  void wait(const fs::path& aside, const std::string& what) {
    const std::chrono::seconds allowed(env_int("TESSERA_TIMEOUT").value_or(600));
    auto end = Clock::now() + allowed;
    uint64_t seen = 0;
    bool said = false;
    while (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        is_exclusive_ = false;
        return;
      }
      if (!said) log_info("{}: waiting for {}, which tokenises it", what, holder());
      said = true;
      const uint64_t bytes = bytes_in(aside);
      if (bytes != seen) end = Clock::now() + allowed;
      seen = bytes;
      if (Clock::now() > end) {
        throw Error(ErrorKind::kPeer,
                    {fmt::format("{} tokenises {}, and got no further for {} s", holder(), what, allowed.count()),
                     path_.string(), "look whether it is stopped, or raise TESSERA_TIMEOUT"});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  fs::path path_;
  UniqueFd fd_;
  bool is_exclusive_ = true;
};

void make_entry(const fs::path& folder, const fs::path& aside, const std::function<json(TokenSink& sink)>& tokenize) {
  std::error_code failed;
  fs::remove_all(aside, failed);  // left by a process that was killed
  if (!fs::create_directory(aside, failed)) {
    machine_refused("tokenised samples cannot be kept", failed ? failed.value() : EEXIST, aside);
  }
  try {
    SampleWriter writer(aside);
    writer.finish(tokenize(writer));
    sync_folder(aside);
    fs::remove_all(folder);
    fs::rename(aside, folder);
    sync_folder_of(folder);
  } catch (const fs::filesystem_error& error) {
    machine_refused("tokenised samples cannot be kept", error.code().value(), folder);
  } catch (...) {
    fs::remove_all(aside, failed);
    throw;
  }
}

}  // namespace

TokenKey key_of_texts(const std::vector<std::string>& files, const Tokenizer& tokenizer, json options) {
  TokenKey key{.files = files, .options = std::move(options)};
  for (const std::string& file : tokenizer.files()) key.files.push_back(file);
  json& extensions = key.options["extensions"] = json::array();  // which decide how a file is read
  for (const std::string& file : files) extensions.push_back(fs::path(file).extension().string());
  return key;
}

json to_facts(const TextCounts& counts) {
  return {{"rows", counts.rows},
          {"empty_rows", counts.empty_rows},
          {"long_rows", counts.long_rows},
          {"text_tokens", counts.text_tokens},
          {"cut_tokens", counts.cut_tokens},
          {"unknown_tokens", counts.unknown_tokens}};
}

TextCounts text_counts_of(const json& facts) {
  return {.rows = facts.at("rows"),
          .empty_rows = facts.at("empty_rows"),
          .long_rows = facts.at("long_rows"),
          .text_tokens = facts.at("text_tokens"),
          .cut_tokens = facts.at("cut_tokens"),
          .unknown_tokens = facts.at("unknown_tokens")};
}

CachedTokens cached_tokens(const std::string& folder, const TokenKey& key, const std::string& what,
                           const std::function<json(TokenSink& sink)>& tokenize) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) machine_refused("the folder of tokenised samples cannot be made", failed.value(), folder);
  const std::string name = name_of_entry(key);
  const fs::path place = fs::path(folder) / name, aside = fs::path(folder) / (name + ".making");
  if (auto found = read_entry(place, what)) {
    log_info("{}: tokenised samples found in {}", what, place.string());
    return std::move(*found);
  }
  const Turn turn(fs::path(folder) / (name + ".lock"), aside, what);
  if (auto found = read_entry(place, what)) return std::move(*found);
  make_entry(place, turn.is_exclusive() ? aside : fs::path(fmt::format("{}.{}", aside.string(), getpid())), tokenize);
  auto made = read_entry(place, what);
  if (!made) machine_refused("tokenised samples are not as they were written", EIO, place);
  return std::move(*made);
}

json keep_tokens(TokenSamples& samples, const std::string& folder, const std::string& what,
                 const std::function<TokenKey()>& key, const std::function<json(TokenSink& sink)>& tokenize) {
  if (folder.empty()) return tokenize(samples);
  CachedTokens cached = cached_tokens(folder, key(), what, tokenize);
  samples = std::move(cached.samples);
  return std::move(cached.facts);
}

}  // namespace tessera::data
