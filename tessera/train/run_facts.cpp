#include "tessera/train/run_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/input_file.h"
#include "tessera/data/reader.h"

namespace tessera::train {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSample = 64 << 10;  // bytes

std::string fact_of_file(const fs::path& path) {
  std::ifstream file = open_input_file(path);
  const uint64_t size = fs::file_size(path);
  uint64_t hash = kFnvOffset;
  const uint64_t last = size > kSample ? size - kSample : 0;
  for (const uint64_t at : {uint64_t{0}, last / 2, last}) {
    std::array<char, kSample> bytes;
    file.clear();
    file.seekg(static_cast<std::streamoff>(at));
    file.read(bytes.data(), bytes.size());
    require_read_whole(file, path);
    hash = fnv1a({bytes.data(), static_cast<size_t>(file.gcount())}, hash);
  }
  return fmt::format("{} of {} bytes, {:016x}\n", path.filename().string(), size, hash);
}

std::string facts_of_files(const std::string& key, const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : data::expand_files(paths)) text += key + ": " + fact_of_file(path);
  return text;
}

// What a model or a tokenizer is read from; other files of a folder do not matter.
bool is_read(const std::string& name) {
  const auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
  return ends(".json") || ends(".safetensors") || ends(".bin") || ends(".txt") || ends(".model") || ends(".jinja");
}

std::string facts_of_folder(const std::string& key, const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failed;
  fs::directory_iterator entry(folder, failed);
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    if (entry->is_regular_file() && is_read(entry->path().filename().string())) files.push_back(entry->path());
  }
  if (failed)
    throw Error(ErrorKind::kData,
                {"the folder cannot be read: " + failed.message(), folder.string(), "check the path"});
  std::sort(files.begin(), files.end());
  std::string text;
  for (const fs::path& file : files) text += key + ": " + fact_of_file(file);
  return text;
}

}  // namespace

std::string facts_of_model(const config::RunFile& run) {
  std::string model = facts_of_folder("model.path", run.model.path);
  if (run.tokenizer != run.model.path) model += facts_of_folder("tokenizer", run.tokenizer);
  if (!run.adapter.path.empty()) model += facts_of_folder("adapter.path", run.adapter.path);
  if (fs::is_regular_file(run.data.chat_template)) {  // else a template that is built in, or none
    model += "data.chat_template: " + fact_of_file(run.data.chat_template);
  }
  return model;
}

std::vector<comm::SharedFacts> facts_of_run(const config::RunFile& run) {
  return {{"run file", config::shared_lines(run.keys), "start every rank with the same run file and the same --set"},
          {"model or tokenizer", facts_of_model(run), "give every host the same files"},
          {"file of data", facts_of_files("data.train", run.data.train) + facts_of_files("data.eval", run.data.eval),
           "give every host the same files, in the same order"}};
}

}  // namespace tessera::train
