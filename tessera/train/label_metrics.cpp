#include "tessera/train/label_metrics.h"

#include <ATen/ops/argmax.h>

#include <numeric>
#include <span>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

struct LabelCounts {
  std::span<const double> correct, given, labelled;
};

LabelCounts counts_in(const LossSum& seen, size_t labels) {
  const std::span<const double> all(seen.tallies);
  TESSERA_INVARIANT(all.size() == 3 * labels);
  return {all.subspan(0, labels), all.subspan(labels, labels), all.subspan(2 * labels, labels)};
}

double sum_of(std::span<const double> counts) { return std::accumulate(counts.begin(), counts.end(), 0.0); }

double accuracy_of(const LabelCounts& counts) {
  const double rows = sum_of(counts.labelled);
  return rows == 0 ? 0 : sum_of(counts.correct) / rows;
}

double f1_of_label(const LabelCounts& counts, size_t label) {
  const double either = counts.given[label] + counts.labelled[label];
  return either == 0 ? 0 : 2 * counts.correct[label] / either;
}

double f1_of(const LabelCounts& counts) {
  if (counts.given.size() == 2) return f1_of_label(counts, 1);
  double sum = 0, present = 0;
  for (size_t label = 0; label < counts.given.size(); ++label) {
    if (counts.given[label] + counts.labelled[label] == 0) continue;
    sum += f1_of_label(counts, label);
    ++present;
  }
  return present == 0 ? 0 : sum / present;
}

}  // namespace

std::vector<double> label_tallies(const at::Tensor& logits, const at::Tensor& labels) {
  const auto count = static_cast<size_t>(logits.size(1));
  std::vector<double> tallies(3 * count);
  const at::Tensor given = at::argmax(logits, 1).cpu(), wanted = labels.cpu().contiguous();
  const auto* const given_ids = given.const_data_ptr<int64_t>();
  const auto* const wanted_ids = wanted.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < wanted.numel(); ++row) {
    const auto got = static_cast<size_t>(given_ids[row]), label = static_cast<size_t>(wanted_ids[row]);
    if (got == label) ++tallies[label];
    ++tallies[count + got];
    ++tallies[2 * count + label];
  }
  return tallies;
}

std::vector<Metric> label_metrics(size_t labels) {
  return {{.name = "accuracy", .value = [labels](const LossSum& seen) { return accuracy_of(counts_in(seen, labels)); }},
          {.name = "f1", .value = [labels](const LossSum& seen) { return f1_of(counts_in(seen, labels)); }}};
}

}  // namespace tessera::train
