#include "tessera/models/generation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

void require_sense(const std::vector<int32_t>& prompt, const GenerationOptions& options) {
  const auto need = [](bool holds, const std::string& what, const char* fix) {
    if (!holds) throw Error(ErrorKind::kUsage, {what, "generation", fix});
  };
  need(!prompt.empty(), "the prompt has no token", "give at least one");
  need(options.max_new_tokens >= 1, fmt::format("max_new_tokens is {}", options.max_new_tokens), "use at least 1");
  need(options.temperature >= 0 && std::isfinite(options.temperature),
       fmt::format("the temperature is {}", options.temperature), "use a number of at least 0");
  need(options.top_k >= 0, fmt::format("top_k is {}", options.top_k), "use at least 0");
  need(options.top_p > 0 && options.top_p <= 1, fmt::format("top_p is {}", options.top_p),
       "use a number above 0 and up to 1");
  need(options.beams >= 1, fmt::format("the number of beams is {}", options.beams), "use at least 1");
  need(options.beams == 1 || options.temperature == 0, "beam search draws nothing", "use one beam, or temperature 0");
}

bool stops(const GenerationOptions& options, int64_t token) {
  return std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end();
}

NamedTensors rows_of(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : rows) tensors.push_back(at::tensor(row, at::kLong));
  NamedTensors batch;
  batch.set("input_ids", at::stack(tensors));
  return batch;
}

// Leaves the logits of the tokens that may be drawn; -infinity for the others. logits (vocab).
at::Tensor filtered(at::Tensor logits, const GenerationOptions& options) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  logits = logits / options.temperature;
  if (options.top_k > 0) {
    const auto least = std::get<0>(at::topk(logits, std::min(options.top_k, logits.size(0)))).min();
    logits = logits.masked_fill(logits < least, kNever);
  }
  if (options.top_p < 1) {
    const auto [sorted, places] = at::sort(logits, /*dim=*/0, /*descending=*/false);
    at::Tensor leaves = at::softmax(sorted, 0).cumsum(0) <= 1 - options.top_p;
    leaves[-1] = false;  // the most likely stays
    logits = logits.masked_fill(leaves.scatter(0, places, leaves), kNever);
  }
  return logits;
}

std::vector<int32_t> one_by_one(CausalNetwork& network, const std::vector<int32_t>& prompt,
                                const GenerationOptions& options) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  Caches caches = network.make_caches();
  std::vector<int64_t> next(prompt.begin(), prompt.end());
  std::vector<int32_t> made;
  while (static_cast<int64_t>(made.size()) < options.max_new_tokens) {
    const at::Tensor logits = network.next_logits(rows_of({next}), &caches)[0].to(at::kFloat).cpu();
    const at::Tensor token = options.temperature == 0
                                 ? logits.argmax()
                                 : at::multinomial(at::softmax(filtered(logits, options), 0), 1, false, generator);
    next = {token.item<int64_t>()};
    made.push_back(static_cast<int32_t>(next[0]));
    if (options.on_token) options.on_token(made.back());
    if (stops(options, next[0])) break;
  }
  return made;
}

struct Beam {
  std::vector<int32_t> tokens;
  double score = 0;    // log-probability; of a finished one, over its length
  int64_t parent = 0;  // the row of the caches that it goes on from
};

class BeamSearch {
 public:
  BeamSearch(CausalNetwork& network, const std::vector<int32_t>& prompt, const GenerationOptions& options)
      : network_(network), options_(options), caches_(network.make_caches()), prompt_(prompt.begin(), prompt.end()) {}

  std::vector<int32_t> run() {
    running_ = {Beam{}};
    while (step()) {
    }
    return finished_.empty() ? running_.front().tokens : finished_.front().tokens;
  }

 private:
  // False: no continuation can be better than what there is.
  bool step() {
    std::vector<Beam> candidates = continuations();
    const size_t beams = static_cast<size_t>(options_.beams);
    running_.clear();
    bool all_end = true;
    for (size_t i = 0; i < candidates.size(); ++i) {
      Beam& candidate = candidates[i];
      const auto length = static_cast<int64_t>(candidate.tokens.size());
      const bool ends = stops(options_, candidate.tokens.back()) || length == options_.max_new_tokens;
      all_end = all_end && ends;
      if (!ends) {
        if (running_.size() < beams) running_.push_back(std::move(candidate));
      } else if (i < beams) {
        candidate.score = penalized(candidate.score, length);
        finished_.push_back(std::move(candidate));
      }
    }
    std::stable_sort(finished_.begin(), finished_.end(),
                     [](const Beam& a, const Beam& b) { return a.score > b.score; });
    if (finished_.size() > beams) finished_.resize(beams);
    if (all_end || running_.empty()) return false;
    std::vector<int64_t> parents;
    for (const Beam& beam : running_) parents.push_back(beam.parent);
    for (nn::KeyValueCache& cache : caches_) cache.reorder(at::tensor(parents, at::kLong));
    const Beam& best = running_.front();
    const double hope = penalized(best.score, static_cast<int64_t>(best.tokens.size()));
    return finished_.size() < beams || hope > finished_.back().score;
  }

  // The best of all beams' next tokens, best first: more than beams, as some end.
  std::vector<Beam> continuations() {
    std::vector<std::vector<int64_t>> rows;
    for (const Beam& beam : running_) {
      rows.push_back(beam.tokens.empty() ? prompt_ : std::vector<int64_t>{beam.tokens.back()});
    }
    const at::Tensor logits = network_.next_logits(rows_of(rows), &caches_).to(at::kFloat).cpu();
    at::Tensor scores = at::log_softmax(logits, 1);
    const int64_t vocab = scores.size(1);
    std::vector<double> before;
    for (const Beam& beam : running_) before.push_back(beam.score);
    scores = (scores + at::tensor(before, at::kFloat).unsqueeze(1)).flatten();
    const int64_t kept = std::max<int64_t>(2, 1 + static_cast<int64_t>(options_.stop_tokens.size())) * options_.beams;
    const auto [values, places] = at::topk(scores, std::min(kept, scores.size(0)));
    std::vector<Beam> all;
    for (int64_t i = 0; i < places.size(0); ++i) {
      const auto place = places[i].item<int64_t>();
      Beam beam{running_[static_cast<size_t>(place / vocab)].tokens, values[i].item<double>(), place / vocab};
      beam.tokens.push_back(static_cast<int32_t>(place % vocab));
      all.push_back(std::move(beam));
    }
    return all;
  }

  double penalized(double score, int64_t length) const {
    return score / std::pow(static_cast<double>(length), options_.length_penalty);
  }

  CausalNetwork& network_;
  const GenerationOptions& options_;
  Caches caches_;
  std::vector<int64_t> prompt_;
  std::vector<Beam> running_, finished_;  // best first
};

}  // namespace

std::vector<int32_t> generate(CausalNetwork& network, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options) {
  require_sense(prompt, options);
  const at::NoGradGuard no_grad;
  if (options.beams == 1) return one_by_one(network, prompt, options);
  std::vector<int32_t> made = BeamSearch(network, prompt, options).run();
  if (options.on_token) std::for_each(made.begin(), made.end(), options.on_token);
  return made;
}

}  // namespace tessera::models
