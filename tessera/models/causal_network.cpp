#include "tessera/models/causal_network.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/causal_mask.h"
#include "tessera/nn/module_path.h"
#include "tessera/nn/target_loss.h"

namespace tessera::models {
namespace {

// A pass over one token that belongs to no text.
at::Tensor idle_logits(CausalNetwork& network, at::Device device) {
  Caches none = network.make_caches();
  NamedTensors batch;
  batch.set("input_ids", at::zeros({1, 1}, at::TensorOptions(at::kLong).device(device)));
  return network.next_logits(batch, &none);
}

// Prompts that are shorter stand at the end of their rows, so that the new tokens of all rows are at one place.
class CausalDecoding final : public Decoding {
 public:
  CausalDecoding(CausalNetwork& network, const PromptRows& prompts)
      : network_(network), caches_(network.make_caches()) {
    PaddedRows rows = padded(prompts, /*at_the_front=*/true);
    ids_ = std::move(rows.ids);
    present_ = std::move(rows.present);
    if (present_.defined()) positions_ = (present_.to(at::kLong).cumsum(1) - 1).clamp_min(0);
  }

  at::Tensor next_logits(const std::vector<int64_t>& chosen) override {
    if (idles_) return idle_logits(network_, ids_.device());
    if (!chosen.empty()) go_on(at::tensor(chosen, at::kLong).to(ids_.device()).unsqueeze(1));
    NamedTensors batch;
    batch.set("input_ids", ids_);
    if (present_.defined()) {
      batch.set("attention_mask", present_);
      batch.set("position_ids", positions_);
    }
    return network_.next_logits(batch, &caches_);
  }

  void reorder(const std::vector<int64_t>& rows) override {
    const at::Tensor order = at::tensor(rows, at::kLong).to(ids_.device());
    for (nn::KeyValueCache& cache : caches_) cache.reorder(order);
    if (!present_.defined()) return;
    present_ = present_.index_select(0, order);
    positions_ = positions_.index_select(0, order);
  }

  void idle() override { idles_ = true; }

 private:
  void go_on(const at::Tensor& ids) {
    ids_ = ids;
    if (!present_.defined()) return;
    present_ = at::cat({present_, at::ones({ids.size(0), 1}, present_.options())}, 1);
    positions_ = positions_.narrow(1, positions_.size(1) - 1, 1) + 1;
  }

  CausalNetwork& network_;
  Caches caches_;
  bool idles_ = false;
  at::Tensor ids_;        // (rows, length) of the next pass
  at::Tensor present_;    // (rows, length so far); undefined without padding
  at::Tensor positions_;  // (rows, length) of the next pass, where there is padding
};

// Of one row, that begins with what is kept of the text before it.
class KeptDecoding final : public Decoding {
 public:
  KeptDecoding(CausalNetwork& network, const PromptRows& prompts)
      : network_(network), kept_(*prompts.kept), device_(prompts.device) {
    TESSERA_INVARIANT(prompts.rows.size() == 1);
    const std::vector<int32_t>& tokens = prompts.rows.front();
    keep_beginning_of(tokens);
    next_.assign(tokens.begin() + static_cast<std::ptrdiff_t>(kept_.tokens.size()), tokens.end());
  }

  at::Tensor next_logits(const std::vector<int64_t>& chosen) override {
    if (idles_) return idle_logits(network_, device_);
    if (!chosen.empty()) next_ = {static_cast<int32_t>(chosen.front())};
    NamedTensors batch;
    batch.set("input_ids", at::tensor(next_, at::kLong).to(device_).unsqueeze(0));
    at::Tensor logits = network_.next_logits(batch, &kept_.caches);
    // Only now: where the pass threw, some layers have more than these.
    const auto before = static_cast<int64_t>(kept_.tokens.size()), read = static_cast<int64_t>(next_.size());
    if (before > 0 && !network_.turns_alike(before, before + read)) kept_.is_alike = false;
    kept_.tokens.insert(kept_.tokens.end(), next_.begin(), next_.end());
    kept_.computed += read;
    return logits;
  }

  void reorder(const std::vector<int64_t>& /*rows*/) override { TESSERA_INVARIANT(!"a kept text is one row"); }
  void idle() override { idles_ = true; }

 private:
  // Leaves one token at least to compute, whose logits are asked for.
  void keep_beginning_of(const std::vector<int32_t>& tokens) {
    const auto differ = std::mismatch(kept_.tokens.begin(), kept_.tokens.end(), tokens.begin(), tokens.end() - 1);
    auto length = static_cast<int64_t>(differ.first - kept_.tokens.begin());
    const auto before = static_cast<int64_t>(kept_.tokens.size()), now = static_cast<int64_t>(tokens.size());
    if (!kept_.is_alike || (before > 0 && !network_.turns_alike(before, now))) length = 0;
    if (length == 0) {
      kept_.caches = network_.make_caches();
      kept_.is_alike = true;
    }
    for (nn::KeyValueCache& cache : kept_.caches) cache.truncate(length);
    kept_.tokens.resize(static_cast<size_t>(length));
  }

  CausalNetwork& network_;
  KeptText& kept_;
  bool idles_ = false;
  std::vector<int32_t> next_;  // of the next pass
  at::Device device_;
};

}  // namespace

at::Tensor decoder_attention(const AttentionHeads& heads, const DecoderInput& input, int64_t window,
                             const nn::AttentionOptions& options) {
  nn::AttentionPattern pattern = input.pattern;
  pattern.window = window;
  return input.rows ? input.rows->attend(heads.query, heads.key, heads.value, pattern, options)
                    : nn::attention(heads.query, heads.key, heads.value, pattern, options);
}

at::Tensor rotary_attention(AttentionHeads heads, const DecoderInput& input, int64_t window,
                            const nn::AttentionOptions& options) {
  heads.query = nn::rotate(heads.query, input.turns);
  heads.key = nn::rotate(heads.key, input.turns);
  if (input.cache != nullptr) std::tie(heads.key, heads.value) = input.cache->append(heads.key, heads.value);
  return decoder_attention(heads, input, window, options);
}

namespace {

// At each place the label of the next.
at::Tensor next_labels(const NamedTensors& batch) {
  const at::Tensor& labels = batch.at("labels");
  const at::Tensor none = at::full({labels.size(0), 1}, nn::kNoTarget, labels.options());
  return at::cat({labels.narrow(1, 1, labels.size(1) - 1), none}, 1);
}

}  // namespace

std::vector<int64_t> document_lengths(const at::Tensor& positions) {
  const at::Tensor on_host = positions.cpu().contiguous();
  const auto* const values = on_host.const_data_ptr<int64_t>();
  const int64_t rows = positions.size(0), length = positions.size(1);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < rows * length; ++i) {
    if (i % length == 0 || values[i] == 0) lengths.push_back(0);
    ++lengths.back();
  }
  if (static_cast<int64_t>(lengths.size()) == rows) lengths.clear();
  return lengths;
}

// What the layers of one forward pass have in common.
struct CausalNetwork::Pass {
  at::Tensor positions;
  std::vector<nn::Rotary::Table> turns;  // of each kind of layer
  DecoderInput input;
  Caches* caches;
};

CausalNetwork::Pass CausalNetwork::pass_over(const NamedTensors& batch, Caches* caches) const {
  const at::Tensor& ids = batch.at("input_ids");
  const int64_t before = caches == nullptr ? 0 : caches->front().length();
  Pass pass{
      .positions = batch.get("position_ids"), .turns = {}, .input = {.pattern = {.causal = true}}, .caches = caches};
  if (batch.get("attention_mask").defined()) {
    pass.input.counted = batch.get("attention_mask").to(at::kBool);
    // A mask of tokens by tokens is larger than all else.
    if (caches != nullptr || !nn::padding_is_behind(pass.input.counted)) {
      pass.input.pattern.present = pass.input.counted;
    }
  } else if (pass.positions.defined() && before == 0) {
    pass.input.pattern.documents = document_lengths(pass.positions);
  }
  if (!pass.positions.defined()) {
    pass.positions = at::arange(before, before + ids.size(1), ids.options()).unsqueeze(0);
  }
  pass.turns = turns(pass.positions);
  pass.input.tokens = nn::tokens_of(ids);
  return pass;
}

at::Tensor CausalNetwork::share(Pass& pass, const at::Tensor& ids) const {
  if (context_.size() == 1) return ids;
  const auto rows = std::make_shared<const nn::SharedRows>(context_, ids.size(1));
  pass.positions = rows->own(pass.positions);
  if (pass.input.counted.defined()) pass.input.counted = rows->own(pass.input.counted);
  for (nn::Rotary::Table& table : pass.turns) table = {rows->own(table.cosine), rows->own(table.sine)};
  pass.input.rows = rows;
  at::Tensor own = rows->own(ids);
  pass.input.tokens = nn::tokens_of(own);
  return own;
}

DecoderState CausalNetwork::run_layers(Pass& pass, size_t first, size_t end, DecoderState state) {
  for (size_t layer = first; layer < end; ++layer) {
    pass.input.cache = pass.caches == nullptr ? nullptr : &(*pass.caches)[layer];
    if (!pass.turns.empty()) pass.input.turns = pass.turns[kind_of(layer)];
    const auto run = [this, layer, input = pass.input](const at::Tensor& hidden, const at::Tensor& router_sums) {
      DecoderInput with = input;
      with.state = {hidden, router_sums};
      return run_layer(layer, with);
    };
    state = checkpoints_activations_ ? nn::checkpoint(run, state.hidden, state.router_sums)
                                     : run(state.hidden, state.router_sums);
  }
  return state;
}

// Each token that has a target weighs the same, so of rows it counts as often as they have targets; ranks that share
// rows have a part of the loss each.
at::Tensor CausalNetwork::router_loss_sum(const at::Tensor& router_sums, const NamedTensors& batch) const {
  const Routers of = routers();
  const at::Tensor labels = next_labels(batch);
  const at::Tensor mask = batch.get("attention_mask");
  const double tokens = mask.defined() ? mask.sum().item<double>() : static_cast<double>(labels.numel());
  at::Tensor all = router_sums.detach();
  if (context_.size() > 1) {
    all = all.clone();
    context_.group()->start_all_reduce(all, /*scale=*/1, "the choice of experts").finish();
  }
  const auto targets = static_cast<double>(labels.ne(nn::kNoTarget).sum().item<int64_t>());
  return nn::router_loss(router_sums, all, tokens * static_cast<double>(of.layers), of.losses) * targets;
}

at::Tensor CausalNetwork::decode(const NamedTensors& batch, Caches* caches) {
  Pass pass = pass_over(batch, caches);
  return normalized(run_layers(pass, 0, layers(), {.hidden = embed(batch.at("input_ids"), pass.positions)}).hidden);
}

at::Tensor CausalNetwork::decode_all(const NamedTensors& batch, Caches* caches) {
  return nn::all_tokens(head().axis(), decode(batch, caches), nn::tokens_of(batch.at("input_ids")));
}

at::Tensor CausalNetwork::loss_sum(const NamedTensors& batch) { return run_links(0, layers() + 2, {}, batch).front(); }

std::vector<at::Tensor> CausalNetwork::run_links(size_t first, size_t end, const std::vector<at::Tensor>& entering,
                                                 const NamedTensors& batch) {
  Pass pass = pass_over(batch, nullptr);
  const at::Tensor ids = share(pass, batch.at("input_ids"));
  const size_t after_layers = layers() + 1;
  const Routers of_routers = routers();
  DecoderState state{.hidden = first == 0 ? embed(ids, pass.positions) : entering.front()};
  if (of_routers.losses.any()) {
    state.router_sums =
        first == 0 ? at::zeros({2 * of_routers.experts + 1}, state.hidden.options().dtype(at::kFloat)) : entering.at(1);
  }
  state = run_layers(pass, std::max<size_t>(first, 1) - 1, std::min(end, after_layers) - 1, std::move(state));
  if (end <= after_layers) return nn::tensors_in(state);
  const at::Tensor labels = next_labels(batch);
  at::Tensor loss = head()(normalized(state.hidden), pass.input.rows ? pass.input.rows->own(labels) : labels);
  if (state.router_sums.defined()) loss = loss + router_loss_sum(state.router_sums, batch);
  return {std::move(loss)};
}

std::vector<Link> CausalNetwork::links() const {
  const auto path = [this](const torch::nn::Module& module) { return nn::path_of(*this, module); };
  std::vector<Link> links{{.kind = "embeddings", .modules = {}, .others = {path(tokens())}}};
  if (positions() != nullptr) links.front().others.push_back(path(*positions()));
  for (size_t number = 0; number < layers(); ++number) {
    Link link{.kind = "layer", .modules = {path(layer(number))}};
    const LayerExperts experts = experts_of(number);
    if (!experts.path.empty()) link.experts = link.modules.front() + "." + experts.path;
    link.share_of_experts = experts.share;
    links.push_back(std::move(link));
  }
  links.push_back({.kind = "head", .modules = {path(last_norm()), path(head())}});
  if (head().has(tokens().weight)) links.back().others.push_back(path(tokens()));
  return links;
}

at::Tensor CausalNetwork::log_probs(const NamedTensors& batch) {
  return head()(decode(batch, nullptr), next_labels(batch), LanguageHead::Of::kRows);
}

std::unique_ptr<Decoding> CausalNetwork::start(const PromptRows& prompts) {
  if (prompts.kept != nullptr) return std::make_unique<KeptDecoding>(*this, prompts);
  return std::make_unique<CausalDecoding>(*this, prompts);
}

at::Tensor CausalNetwork::logits(const NamedTensors& batch, Caches* caches) {
  return head()(decode_all(batch, caches));
}

at::Tensor CausalNetwork::next_logits(const NamedTensors& batch, Caches* caches) {
  return head()(decode_all(batch, caches).select(1, -1));
}

}  // namespace tessera::models
