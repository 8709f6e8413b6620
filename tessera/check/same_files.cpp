#include "tessera/check/same_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/input_file.h"
#include "tessera/storage/file_sum.h"

namespace tessera::check {
namespace fs = std::filesystem;

namespace {

using nlohmann::json;

constexpr const char* kStep = "files";
constexpr uint64_t kBatch = 1ULL << 30;  // bytes to read between two exchanges, so that no wait is long

uint64_t bytes_read(uint64_t bytes) {
  return bytes <= kReadWhole ? bytes : std::min(bytes, kSamples * storage::kSumBlockBytes);
}

// Where the blocks begin that are read of so many bytes.
std::vector<uint64_t> places_to_read(uint64_t bytes) {
  const uint64_t block = storage::kSumBlockBytes;
  std::vector<uint64_t> places;
  if (bytes <= kReadWhole) {
    for (uint64_t at = 0; at < bytes; at += block) places.push_back(at);
    return places;
  }
  const uint64_t last = bytes - block;
  for (uint64_t i = 0; i + 1 < kSamples; ++i) places.push_back(last / (kSamples - 1) * i);
  places.push_back(last);
  return places;
}

std::string dump(const json& value) {  // names that are no UTF-8 are replaced
  return value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

json json_of(const FileState& state) { return {static_cast<int>(state.kind), state.bytes, state.sum}; }

FileState state_of(const json& value) {
  return {static_cast<FileState::Kind>(value.at(0).get<int>()), value.at(1), value.at(2)};
}

// What stands at [host][file]; only the first rank of each host tells something.
std::vector<std::vector<FileState>> states_of_hosts(comm::Group& world, const std::vector<int>& readers,
                                                    const std::vector<FileState>& own) {
  json told = json::array();
  for (const FileState& state : own) told.push_back(json_of(state));
  const std::vector<std::string> texts = world.exchange_texts(told.dump(), "files");
  std::vector<std::vector<FileState>> states;
  for (const int reader : readers) {
    for (auto& of_host = states.emplace_back(); const json& each : json::parse(texts[static_cast<size_t>(reader)])) {
      of_host.push_back(state_of(each));
    }
  }
  return states;
}

std::string words_of(const FileState& state) {
  if (state.kind == FileState::Kind::kMissing) return "no such file";
  if (state.kind == FileState::Kind::kUnreadable) return "a file that it cannot read";
  const std::string size = count_of(static_cast<int64_t>(state.bytes), "byte");
  return state.sum == 0 ? size : fmt::format("{} with the sum {:016x}", size, state.sum);
}

// The paths that any host names, in one order; rank 0's come first.
std::vector<std::string> union_of_paths(comm::Group& world, const std::vector<int>& readers,
                                        const std::vector<std::string>& own) {
  const std::vector<std::string> texts = world.exchange_texts(dump(own), "names of files");
  std::vector<std::string> all;
  std::set<std::string> seen;
  for (const int reader : readers) {
    for (const std::string path : json::parse(texts[static_cast<size_t>(reader)])) {
      if (seen.insert(path).second) all.push_back(path);
    }
  }
  // A folder that one host does not have: its files are missing there, each by its own name.
  std::erase_if(all, [&](const std::string& path) {
    const auto below = seen.lower_bound(path + "/");
    return below != seen.end() && below->starts_with(path + "/");
  });
  return all;
}

class Comparison {
 public:
  Comparison(comm::Group& world, const std::vector<HostCard>& cards, Findings& found)
      : world_(world), cards_(cards), readers_(first_ranks(cards)), found_(found) {
    reads_ = std::find(readers_.begin(), readers_.end(), world.rank()) != readers_.end();
  }

  std::vector<CheckedFile> run(const std::vector<std::string>& paths) {
    files_.clear();
    for (const std::string& path : union_of_paths(world_, readers_, reads_ ? files_below(paths) : Paths{})) {
      files_.push_back({.path = path, .same = true});
    }
    compare(0, files_.size(), size_of_file);
    for (size_t begin = 0; begin < files_.size();) {
      size_t end = begin;
      for (uint64_t bytes = 0; end < files_.size() && (end == begin || bytes < kBatch); ++end) {
        bytes += bytes_read(files_[end].bytes);
      }
      compare(begin, end, sum_of_file);
      begin = end;
    }
    return std::move(files_);
  }

 private:
  using Paths = std::vector<std::string>;

  // Of the files [begin, end) that are the same so far.
  void compare(size_t begin, size_t end, FileState (*state_of_path)(const std::string&)) {
    std::vector<size_t> asked;
    std::vector<FileState> own;
    for (size_t i = begin; i < end; ++i) {
      if (!files_[i].same) continue;
      asked.push_back(i);
      if (reads_) own.push_back(state_of_path(files_[i].path));
    }
    const auto states = states_of_hosts(world_, readers_, own);
    for (size_t i = 0; i < asked.size(); ++i) judge(files_[asked[i]], states, i);
  }

  void judge(CheckedFile& file, const std::vector<std::vector<FileState>>& states, size_t index) {
    const FileState& first = states[0][index];
    file.bytes = first.bytes;
    for (size_t host = 0; host < states.size(); ++host) {
      const FileState& state = states[host][index];
      const bool first_has_it = first.kind == FileState::Kind::kFile;
      if (state == first ? first_has_it || host > 0 : !first_has_it) continue;  // rank 0's own is told once
      file.same = false;
      const std::string name = rank_name(cards_[static_cast<size_t>(readers_[host])]);
      const std::string what = host == 0
                                   ? fmt::format("{} finds under '{}' {}", name, file.path, words_of(state))
                                   : fmt::format("{} finds under '{}' {}, and {} {}", name, file.path, words_of(state),
                                                 rank_name(cards_[static_cast<size_t>(readers_[0])]), words_of(first));
      found_.push_back({Finding::Kind::kProblem, kStep, what,
                        readers_.size() == 1 ? "see how the path is written, and who may read the file"
                                             : "copy the file to every host again (rsync -c), under the same path"});
    }
  }

  comm::Group& world_;
  const std::vector<HostCard>& cards_;
  std::vector<int> readers_;
  bool reads_ = false;
  Findings& found_;
  std::vector<CheckedFile> files_;
};

}  // namespace

FileState size_of_file(const std::string& path) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) return {};
  return {FileState::Kind::kFile, fs::file_size(path, failed)};
}

FileState sum_of_file(const std::string& path) {
  FileState state = size_of_file(path);
  if (state.kind != FileState::Kind::kFile) return state;
  try {
    std::ifstream file = open_input_file(path);
    std::vector<uint64_t> sums;
    std::string bytes(std::min(storage::kSumBlockBytes, std::max<uint64_t>(state.bytes, 1)), '\0');
    for (const uint64_t at : places_to_read(state.bytes)) {
      file.clear();
      file.seekg(static_cast<std::streamoff>(at));
      file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      require_read_whole(file, path);
      sums.push_back(storage::hash_of(bytes.data(), static_cast<size_t>(file.gcount())));
    }
    state.sum = storage::hash_of(sums.data(), sums.size() * sizeof(uint64_t));
  } catch (const Error&) {
    state.kind = FileState::Kind::kUnreadable;
  }
  return state;
}

std::vector<std::string> files_below(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code failed;
    if (!fs::is_directory(path, failed)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> below;
    fs::recursive_directory_iterator entry(path, fs::directory_options::skip_permission_denied, failed);
    for (; !failed && entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
      std::error_code ignored;
      if (entry->is_regular_file(ignored)) below.push_back(entry->path().string());
    }
    std::sort(below.begin(), below.end());
    files.insert(files.end(), below.begin(), below.end());
  }
  return files;
}

std::vector<CheckedFile> compare_files(comm::Group& world, const std::vector<HostCard>& cards,
                                       const std::vector<std::string>& paths, Findings& found) {
  return Comparison(world, cards, found).run(paths);
}

}  // namespace tessera::check
