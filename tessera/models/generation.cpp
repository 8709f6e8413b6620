#include "tessera/models/generation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kMostBeams = 1024;

void need(bool holds, const std::string& what, const std::string& fix) {
  if (!holds) throw Error(ErrorKind::kUsage, {what, "generation", fix});
}

}  // namespace

void check_generation(const std::vector<std::vector<int32_t>>& prompts, const GenerationOptions& options) {
  need(!prompts.empty(), "there is no prompt", "give at least one");
  for (const Tokens& prompt : prompts) need(!prompt.empty(), "the prompt has no token", "give at least one");
  need(options.max_new_tokens >= 1, fmt::format("max_new_tokens is {}", options.max_new_tokens), "use at least 1");
  need(options.temperature >= 0 && std::isfinite(options.temperature),
       fmt::format("the temperature is {}", options.temperature), "use a number of at least 0");
  need(options.top_k >= 0, fmt::format("top_k is {}", options.top_k), "use at least 0");
  need(options.top_p > 0 && options.top_p <= 1, fmt::format("top_p is {}", options.top_p),
       "use a number above 0 and up to 1");
  need(options.temperature > 0 || (options.top_k == 0 && options.top_p == 1),
       "top_k and top_p are for tokens that are drawn, and temperature 0 draws none", "set a temperature above 0");
  need(options.beams >= 1 && options.beams <= kMostBeams, fmt::format("the number of beams is {}", options.beams),
       fmt::format("use 1 to {}", kMostBeams));
  need(options.beams == 1 || options.temperature == 0, "beam search draws nothing", "use one beam, or temperature 0");
}

namespace {

bool stops(const GenerationOptions& options, int64_t token) {
  return std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end();
}

std::unique_ptr<Decoding> started(GenerativeNetwork& network, const std::vector<Tokens>& prompts,
                                  const GenerationOptions& options) {
  return network.start(
      {.rows = prompts, .device = options.device, .decoder_start = options.decoder_start, .kept = options.kept});
}

// After a pass: whether it was the last. Where this rank's rows have ended before those of others, it runs the passes
// that they still need.
bool is_over(Decoding& decoding, bool ended, const GenerationOptions& options) {
  if (!options.all_ended) return ended;
  bool all = options.all_ended(ended);
  if (!ended) return false;
  for (decoding.idle(); !all; all = options.all_ended(true)) decoding.next_logits({0});
  return true;
}

// (rows, vocab), on the CPU in fp32.
at::Tensor next_logits(Decoding& decoding, const std::vector<int64_t>& chosen) {
  return decoding.next_logits(chosen).to(at::kFloat).cpu();
}

// Leaves the logits of the tokens that may be drawn; -infinity for the others. logits (rows, vocab).
at::Tensor filtered(at::Tensor logits, const GenerationOptions& options) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  logits = logits / options.temperature;
  if (options.top_k > 0) {
    const int64_t kept = std::min(options.top_k, logits.size(1));
    const at::Tensor least = std::get<0>(at::topk(logits, kept)).narrow(1, kept - 1, 1);
    logits = logits.masked_fill(logits < least, kNever);
  }
  if (options.top_p < 1) {
    const auto [sorted, places] = at::sort(logits, /*dim=*/1, /*descending=*/false);
    const at::Tensor leaves = at::softmax(sorted, 1).cumsum(1) <= 1 - options.top_p;
    leaves.select(1, -1).fill_(false);  // the most likely stays
    logits = logits.masked_fill(leaves.scatter(1, places, leaves), kNever);
  }
  return logits;
}

std::vector<Tokens> one_by_one(GenerativeNetwork& network, const std::vector<Tokens>& prompts,
                               const GenerationOptions& options) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  const auto decoding = started(network, prompts, options);
  std::vector<Tokens> made(prompts.size());
  std::vector<bool> has_ended(prompts.size(), false);
  std::vector<int64_t> chosen;
  for (int64_t pass = 1;; ++pass) {
    const at::Tensor logits = next_logits(*decoding, chosen);
    const at::Tensor tokens =
        options.temperature == 0
            ? logits.argmax(1)
            : at::multinomial(at::softmax(filtered(logits, options), 1), 1, false, generator).squeeze(1);
    chosen.resize(prompts.size());
    for (size_t row = 0; row < prompts.size(); ++row) {
      chosen[row] = tokens[static_cast<int64_t>(row)].item<int64_t>();
      if (has_ended[row]) continue;
      made[row].push_back(static_cast<int32_t>(chosen[row]));
      if (options.on_token) options.on_token(row, made[row].back());
      has_ended[row] = stops(options, chosen[row]);
    }
    const bool all_stopped = std::find(has_ended.begin(), has_ended.end(), false) == has_ended.end();
    if (is_over(*decoding, all_stopped || pass == options.max_new_tokens, options)) break;
  }
  return made;
}

struct Beam {
  Tokens tokens;
  double score = 0;    // log-probability; of a finished one, over its length
  int64_t parent = 0;  // the row that it goes on from
};

class BeamSearch {
 public:
  BeamSearch(GenerativeNetwork& network, const Tokens& prompt, const GenerationOptions& options)
      : options_(options), decoding_(started(network, {prompt}, options)) {}

  Tokens run() {
    running_ = {Beam{}};
    while (!is_over(*decoding_, !step(), options_)) {
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
    decoding_->reorder(parents);
    const Beam& best = running_.front();
    const double hope = penalized(best.score, static_cast<int64_t>(best.tokens.size()));
    return finished_.size() < beams || hope > finished_.back().score;
  }

  // The best of all beams' next tokens, best first: more than beams, as some end.
  std::vector<Beam> continuations() {
    std::vector<int64_t> chosen;
    for (const Beam& beam : running_) {
      if (!beam.tokens.empty()) chosen.push_back(beam.tokens.back());
    }
    at::Tensor scores = at::log_softmax(next_logits(*decoding_, chosen), 1);
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

  const GenerationOptions& options_;
  std::unique_ptr<Decoding> decoding_;
  std::vector<Beam> running_, finished_;  // best first
};

}  // namespace

std::vector<std::vector<int32_t>> generate_rows(GenerativeNetwork& network,
                                                const std::vector<std::vector<int32_t>>& prompts,
                                                const GenerationOptions& options) {
  check_generation(prompts, options);
  TESSERA_INVARIANT(options.kept == nullptr || (prompts.size() == 1 && options.beams == 1));
  TESSERA_INVARIANT(!options.all_ended || prompts.size() == 1 || options.beams == 1);
  const at::NoGradGuard no_grad;
  if (options.beams == 1) return one_by_one(network, prompts, options);
  std::vector<Tokens> made;
  for (const Tokens& prompt : prompts) {
    const Tokens& row = made.emplace_back(BeamSearch(network, prompt, options).run());
    for (size_t i = 0; options.on_token && i < row.size(); ++i) options.on_token(made.size() - 1, row[i]);
  }
  return made;
}

std::vector<int32_t> generate(GenerativeNetwork& network, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options) {
  return generate_rows(network, {prompt}, options).front();
}

}  // namespace tessera::models
