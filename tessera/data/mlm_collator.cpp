#include "tessera/data/mlm_collator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/data/collators.h"
#include "tessera/data/philox.h"

namespace tessera::data {

namespace {

// The 32-bit words below probability * 2^32.
uint64_t threshold(double probability) { return static_cast<uint64_t>(std::llround(std::ldexp(probability, 32))); }

// A number in [0, count) from 32 random bits: multiply and take the upper half. The bias is below count / 2^32.
int64_t below(int64_t count, uint32_t word) {
  return static_cast<int64_t>((static_cast<uint64_t>(count) * word) >> 32);
}

}  // namespace

MlmCollator::MlmCollator(const TokenizedDataset& dataset, const Tokenizer& tokenizer, const MlmOptions& options)
    : dataset_(dataset),
      options_(options),
      mask_(required_id(tokenizer.special_ids().mask, "mask")),
      pad_(required_id(tokenizer.special_ids().pad, "padding")),
      vocab_size_(tokenizer.vocab_size()),
      maskable_(static_cast<size_t>(vocab_size_)) {
  if (!(options.probability >= 0 && options.probability <= 1)) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("the masking probability is {}", options.probability), "", "use a number from 0 to 1"});
  }
  size_t longest = 0;
  for (size_t i = 0; i < dataset.size(); ++i) longest = std::max(longest, dataset.sample(i).size());
  if (static_cast<int64_t>(longest) > options.max_length) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("max_length is {}, but a sample has {} tokens", options.max_length, longest), "",
                 "use the same max_length for the dataset"});
  }
  for (int64_t id = 0; id < vocab_size_; ++id) {
    maskable_[static_cast<size_t>(id)] = !tokenizer.is_special(static_cast<int32_t>(id));
  }
}

// counter  sample, low half | sample, high half | position | epoch      key  seed
// words    is it a target?  | which of 80/10/10 | which random id | unused
MlmCollator::Draw MlmCollator::draw(size_t sample, int64_t position, int32_t token, int64_t epoch) const {
  if (!maskable_[static_cast<size_t>(token)]) return {.target = false, .input = token};
  const auto words = philox4x32({static_cast<uint32_t>(sample), static_cast<uint32_t>(uint64_t{sample} >> 32),
                                 static_cast<uint32_t>(position), static_cast<uint32_t>(epoch)},
                                {static_cast<uint32_t>(options_.seed), static_cast<uint32_t>(options_.seed >> 32)});
  if (words[0] >= threshold(options_.probability)) return {.target = false, .input = token};
  if (words[1] < threshold(0.8)) return {.target = true, .input = mask_};
  if (words[1] < threshold(0.9)) return {.target = true, .input = below(vocab_size_, words[2])};
  return {.target = true, .input = token};
}

Batch MlmCollator::collate(std::span<const size_t> samples, int64_t epoch) const {
  Batch batch;
  batch.rows = static_cast<int64_t>(samples.size());
  size_t length = 0;
  for (const size_t sample : samples) length = std::max(length, dataset_.sample(sample).size());
  if (options_.pad_to_max_length) length = static_cast<size_t>(options_.max_length);

  const auto add = [&](const char* name, int64_t value) -> std::vector<int64_t>& {
    return batch.add(name, {batch.rows, static_cast<int64_t>(length)}, value);
  };
  std::vector<int64_t>& input_ids = add("input_ids", pad_);
  std::vector<int64_t>& attention_mask = add("attention_mask", 0);
  add("token_type_ids", 0);
  std::vector<int64_t>& labels = add("labels", kNoTarget);
  for (size_t row = 0; row < samples.size(); ++row) {
    const auto tokens = dataset_.sample(samples[row]);
    for (size_t position = 0; position < tokens.size(); ++position) {
      const Draw drawn = draw(samples[row], static_cast<int64_t>(position), tokens[position], epoch);
      const size_t at = row * length + position;
      input_ids[at] = drawn.input;
      attention_mask[at] = 1;
      if (!drawn.target) continue;
      labels[at] = tokens[position];
      ++batch.target_tokens;
    }
    batch.tokens += static_cast<int64_t>(tokens.size());
  }
  return batch;
}

int64_t MlmCollator::count_targets(std::span<const size_t> samples, int64_t epoch) const {
  int64_t count = 0;
  for (const size_t sample : samples) {
    const auto tokens = dataset_.sample(sample);
    for (size_t position = 0; position < tokens.size(); ++position) {
      count += draw(sample, static_cast<int64_t>(position), tokens[position], epoch).target;
    }
  }
  return count;
}

std::unique_ptr<Collator> make_mlm_collator(const CollatorInput& input) {
  using Padding = config::RunFile::Data::Padding;
  if (packing_of(input.options, Packing::kNone) != Packing::kNone) {
    throw Error(ErrorKind::kConfig, {"'data.packing' lays several samples in a row, which the task mlm does not know",
                                     "the run's data", "leave it out, or write none"});
  }
  return std::make_unique<MlmCollator>(input.dataset, input.tokenizer,
                                       MlmOptions{.probability = input.options.mlm_probability,
                                                  .max_length = input.options.max_length,
                                                  .pad_to_max_length = input.options.padding == Padding::kMaxLength,
                                                  .seed = input.seed});
}

}  // namespace tessera::data
