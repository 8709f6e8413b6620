#include "tessera/data/clm_collator.h"

#include <algorithm>
#include <numeric>

#include "tessera/data/collators.h"

namespace tessera::data {
namespace {

int64_t length_of(const PackedRow& row) {
  return std::accumulate(row.begin(), row.end(), int64_t{0}, [](int64_t sum, const auto& p) { return sum + p.count; });
}

// The first token of a part has nothing before it that it could be predicted from.
bool is_target(const TokenSamples& documents, const PackedPart& part, int64_t place) {
  return place > 0 && documents.is_target(part.document, part.first + place);
}

}  // namespace

ClmCollator::ClmCollator(const TokenSamples& documents, const ClmOptions& options)
    : documents_(documents),
      options_(options),
      rows_(documents.offsets(),
            options.part_ends.empty() ? std::vector<uint64_t>{documents.size()} : options.part_ends, options.max_length,
            options.packing) {}

Batch ClmCollator::collate(std::span<const size_t> samples, int64_t epoch) const {
  Batch batch;
  batch.rows = static_cast<int64_t>(samples.size());
  std::vector<PackedRow> rows;
  int64_t length = 0;
  for (const size_t sample : samples) length = std::max(length, length_of(rows.emplace_back(rows_.row(sample))));
  if (options_.pad_to_max_length) length = options_.max_length;

  const auto add = [&](const char* name, int64_t value) -> std::vector<int64_t>& {
    return batch.add(name, {batch.rows, length}, value);
  };
  std::vector<int64_t>& input_ids = add("input_ids", options_.padding_id);
  std::vector<int64_t>& labels = add("labels", kNoTarget);
  const bool packed = options_.packing != Packing::kNone;
  // Padding after the last document counts on: it is no document of its own, and nobody looks at it.
  std::vector<int64_t>& places = packed ? add("position_ids", 0) : add("attention_mask", 0);
  for (size_t row = 0; row < samples.size(); ++row) {
    size_t at = row * static_cast<size_t>(length);
    int64_t position = 0;
    for (const PackedPart& part : rows[row]) {
      const auto tokens =
          documents_.sample(part.document).subspan(static_cast<size_t>(part.first), static_cast<size_t>(part.count));
      for (position = 0; position < part.count; ++position, ++at) {
        input_ids[at] = tokens[static_cast<size_t>(position)];
        if (is_target(documents_, part, position)) labels[at] = input_ids[at];
        places[at] = packed ? position : 1;
      }
      batch.tokens += part.count;
    }
    const size_t end = (row + 1) * static_cast<size_t>(length);
    for (; packed && at < end; ++at) places[at] = position++;
  }
  batch.target_tokens = count_targets(samples, epoch);
  return batch;
}

int64_t ClmCollator::count_targets(std::span<const size_t> samples, int64_t) const {
  int64_t count = 0;
  for (const size_t sample : samples) {
    for (const PackedPart& part : rows_.row(sample)) {
      for (int64_t place = 0; place < part.count; ++place) count += is_target(documents_, part, place);
    }
  }
  return count;
}

std::unique_ptr<Collator> make_clm_collator(const CollatorInput& input) {
  using Padding = config::RunFile::Data::Padding;
  return std::make_unique<ClmCollator>(input.dataset,
                                       ClmOptions{.max_length = input.options.max_length,
                                                  .packing = packing_of(input.options, Packing::kFill),
                                                  .pad_to_max_length = input.options.padding == Padding::kMaxLength,
                                                  .padding_id = input.tokenizer.special_ids().pad.value_or(0),
                                                  .part_ends = input.part_ends});
}

}  // namespace tessera::data
