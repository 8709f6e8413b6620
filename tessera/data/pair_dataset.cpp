#include "tessera/data/pair_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/data/reader.h"

namespace tessera::data {
namespace {

// The text's ids in the tokenizer's frame; at most `most` of them, the frame whole.
std::vector<int32_t> framed_ids(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, int64_t most) {
  const SampleFrame& frame = tokenizer.frame();
  const size_t room = static_cast<size_t>(most) - frame.size();
  std::vector<int32_t> all = frame.before;
  all.insert(all.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), room)));
  all.insert(all.end(), frame.after.begin(), frame.after.end());
  return all;
}

void require_room(const Tokenizer& tokenizer, int64_t most, const char* key) {
  const auto framing = static_cast<int64_t>(tokenizer.frame().size());
  if (most > framing) return;
  throw Error(ErrorKind::kConfig,
              {fmt::format("{} is {}", key, most), "the run's data", fmt::format("use at least {}", framing + 1)});
}

}  // namespace

PairDataset::PairDataset(const Tokenizer& tokenizer, const PairOptions& options) {
  require_room(tokenizer, options.max_source, "data.max_length");
  require_room(tokenizer, options.max_target, "data.max_target_length");
  const auto framing = static_cast<int64_t>(tokenizer.frame().size());
  for (const std::string& file : options.files) {
    const std::vector<std::string> sources = read_texts(file, options.source_column),
                                   targets = read_texts(file, options.target_column);
    TESSERA_INVARIANT(sources.size() == targets.size());
    for (size_t row = 0; row < sources.size(); ++row) {
      ++counts_.rows;
      const auto source = tokenizer.encode(options.source_prefix + sources[row]),
                 target = tokenizer.encode(targets[row]);
      if (target.empty() || sources[row].empty()) {
        ++counts_.empty_rows;
        continue;
      }
      counts_.cut_sources += static_cast<int64_t>(source.size()) + framing > options.max_source;
      counts_.cut_targets += static_cast<int64_t>(target.size()) + framing > options.max_target;
      sources_.add(framed_ids(tokenizer, source, options.max_source));
      targets_.add(framed_ids(tokenizer, target, options.max_target));
      if (options.keeps_target_texts) target_texts_.push_back(targets[row]);
    }
    file_ends_.push_back(size());
  }
  if (size() > 0) return;
  throw Error(ErrorKind::kData,
              {"no row has both a text to read and one to write", fmt::format("{}", fmt::join(options.files, ", ")),
               fmt::format("check the columns '{}' and '{}'", options.source_column, options.target_column)});
}

}  // namespace tessera::data
