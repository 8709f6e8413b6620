#include "tessera/plan/memory_model.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/kernels/block_quantization.h"
#include "tessera/kernels/matrix_products.h"
#include "tessera/layout/range.h"
#include "tessera/plan/offload_traffic.h"
#include "tessera/storage/dtype.h"

namespace tessera::plan {
namespace {

// The program with LibTorch, Arrow and the tokenizer, on any model; of several ranks with connections and their
// threads.
constexpr int64_t kProcessBytes = 157'000'000;

// Unit gradients that are on their way between ranks while another one fills (zero/gradient_reducer.cpp).
constexpr int64_t kMaxInFlight = 2;

// What memory depends on of an optimizer: the tensors that it keeps for each weight, as its state_names() in optim/
// have them, and its elementwise().
struct OptimizerTraits {
  const char* name;
  int64_t state_tensors;
  bool elementwise = true;
  bool sign_errors = false;
};
constexpr OptimizerTraits kOptimizers[] = {{"Adam", 2},
                                           {"AdamW", 2},
                                           {"Lamb", 2, false},
                                           {"Muon", 2, false},
                                           {"Lion", 1},
                                           {"Adagrad", 1},
                                           {"SGD", 0},
                                           {"OneBitAdam", 2, false, true},
                                           {"OneBitLamb", 3, false, true},
                                           {"ZeroOneAdam", 4, false, true}};

// One moment of a step, as what is alive in it.
class Moment {
 public:
  void add(const std::string& what, int64_t block_bytes, int64_t count = 1) {
    if (block_bytes <= 0 || count <= 0) return;
    const auto found = std::find_if(terms_.begin(), terms_.end(), [&](const MemoryTerm& t) { return t.what == what; });
    MemoryTerm& term = found != terms_.end() ? *found : terms_.emplace_back(MemoryTerm{.what = what});
    term.bytes += block_bytes * count;
  }

  const std::vector<MemoryTerm>& terms() const { return terms_; }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const MemoryTerm& term : terms_) sum += term.bytes;
    return sum;
  }

 private:
  std::vector<MemoryTerm> terms_;
};

class StepModel {
 public:
  StepModel(const ModelCensus& model, const TrainingSetup& setup)
      : model_(model),
        setup_(setup),
        compute_(bytes_of(setup.dtypes.compute)),
        grad_(bytes_of(setup.dtypes.grad)),
        tokens_(setup.micro_batch * setup.length),
        own_tokens_(layout::ceil_div(tokens_, setup.tensor_ranks)),
        in_flight_(setup.ranks > 1 ? kMaxInFlight : 0) {}

  // In the order in which they come.
  std::vector<Moment> moments() const {
    std::vector<Moment> all{head_backward(), block_backward()};
    if (model_.units.size() == 1) return all;
    all.push_back(embeddings_backward());
    all.push_back(embeddings_reduction());
    return all;
  }

 private:
  const UnitCensus& embeddings() const { return model_.units[model_.embeddings]; }
  const UnitCensus& head() const { return model_.units.back(); }
  const UnitCensus& block() const { return model_.largest_block(); }
  bool is_narrow() const { return compute_ == 2 && setup_.wide_products && setup_.on_cpu; }

  // The matrix that makes logits of hidden states.
  int64_t head_matrix() const {
    return model_.head_shares_embeddings ? embeddings().largest_tensor : head().largest_tensor;
  }

  void add_waiting_activations(Moment& moment) const {
    if (!model_.architecture) return;
    const Architecture& net = *model_.architecture;
    const int64_t input = own_tokens_ * net.hidden * compute_;
    moment.add("activations", input, 3);  // the embeddings' sum, its dropout and norm
    for (int64_t layer = 0; layer < net.layers; ++layer) {
      if (setup_.activation_checkpointing) {
        moment.add("activations", input);
      } else {
        add_block_activations(moment);
      }
    }
  }

  // What one block saves for backward. h: hidden, e: bytes of the compute dtype.
  void add_block_activations(Moment& moment) const {
    const Architecture& net = *model_.architecture;
    const bool keeps_scores = net.attention_dropout > 0;
    const int64_t wide = setup_.on_cpu && keeps_scores ? 4 : compute_;  // LibTorch's attention by products is in fp32
    const int64_t e = compute_;
    const std::string what = "activations";
    moment.add(what, tokens_ * net.heads * net.head_size * wide);        // q
    moment.add(what, tokens_ * net.kv_heads * net.head_size * wide, 2);  // k, v
    moment.add(what, tokens_ * net.heads * net.head_size * e);           // what attention gives
    moment.add(what, own_tokens_ * net.hidden * e, 2);                   // inputs of the two norms
    moment.add(what, tokens_ * net.hidden * e, 2);  // … their outputs, as the next layer has them
    if (net.hidden_dropout > 0) moment.add(what, own_tokens_ * net.hidden * (setup_.on_cpu ? e : 1), 2);
    if (keeps_scores) {  // softmax, the dropout's factors, their product
      const int64_t scores = tokens_ * setup_.length * net.heads;
      moment.add(what, scores * wide, 2);
      moment.add(what, scores * (setup_.on_cpu ? wide : 1));
    }
    moment.add(what, tokens_ * net.ffn * e, net.gated_ffn ? 4 : 2);  // before and after the activation function; gated
    moment.add(what, tokens_ * net.experts_of_token * net.hidden * e, 2);  // rows of experts, before and after
  }

  // What is in use, and of the other units as many as stay for their backward or are gathered ahead of it: from the
  // last one backwards, because those before are used later (zero/sharded_model.cpp).
  void add_gathered(Moment& moment, const UnitCensus& in_use) const {
    if (setup_.stage < 3) return;
    int64_t live = 0;
    const auto add = [&](const UnitCensus& unit) {
      moment.add("gathered parameters", unit.bytes(compute_));
      live += unit.held();
    };
    // A shared matrix stays gathered until its gradient is complete, which is at the end.
    if (model_.head_shares_embeddings && &in_use != &embeddings()) add(embeddings());
    add(in_use);
    if (&in_use == &embeddings()) return;  // the last of a pass
    const int64_t ahead = setup_.ranks > 1 && setup_.params != OffloadTo::kNvme ? setup_.prefetch_bucket_size : 0;
    const int64_t others = std::max(setup_.max_reuse_distance / 2, ahead);  // there and back again
    const int64_t most = std::min(setup_.max_live_parameters, live + others);
    for (size_t i = model_.units.size() - 1; i-- > 0;) {
      const UnitCensus& unit = model_.units[i];
      if (i == model_.embeddings && model_.head_shares_embeddings) break;
      if (live + unit.held() > most) break;
      if (&unit != &in_use) add(unit);
    }
  }

  // Of a matrix of the unit, what has a gradient: all of it, or, where most of the unit is frozen, an adapter's.
  static int64_t trained_part(int64_t matrix, const UnitCensus& unit) { return std::min(matrix, unit.trained()); }
  const UnitCensus& head_owner() const { return model_.head_shares_embeddings ? embeddings() : head(); }

  // Of one product with a matrix of so many elements: in fp32 the matrix itself, later its gradient; of 16-bit products
  // oneDNN's copy of the matrix, whose elements lie as its instructions want them.
  void add_product(Moment& moment, int64_t matrix) const {
    if (compute_ != 2 || !setup_.on_cpu) return;
    if (is_narrow()) {
      moment.add("matrix products in fp32", matrix * 4);
    } else {
      moment.add("packed matrices", matrix * compute_);
    }
  }

  // Of one product with a weight that is kept as NF4: the weight.
  void add_dequantized(Moment& moment, const UnitCensus& unit) const {
    moment.add("dequantized weight", unit.largest_quantized * compute_);
  }

  // Whole gradients on their way into shards, and what peers send of them.
  void add_reductions(Moment& moment, const UnitCensus& unit, int64_t count) const {
    const int64_t numel = unit.trained();
    if (setup_.stage >= 2) moment.add("gradients in flight", numel * grad_, count);
    const int64_t reduce = bytes_of(setup_.dtypes.reduce);
    const bool leaves = setup_.stage >= 2 && setup_.optimizer == OffloadTo::kNvme;
    if (leaves) moment.add("gradients in flight", layout::ceil_div(numel, setup_.ranks) * reduce, count);
    if (reduce != grad_) moment.add("gradients in flight", numel * reduce, count);
    if (setup_.ranks > 1) {
      moment.add("messages from peers", layout::ceil_div(numel, setup_.ranks) * reduce, (setup_.ranks - 1) * count);
    }
  }

  Moment head_backward() const {
    Moment moment;
    add_waiting_activations(moment);
    if (model_.architecture) {
      const Architecture& net = *model_.architecture;
      const int64_t targets = targets_of(net, setup_);
      const int64_t at_once = net.logit_rows_at_once > 0 ? std::min(targets, net.logit_rows_at_once) : targets;
      const int64_t logits = at_once * net.vocab;
      moment.add("logits and loss", logits * 4, 3);  // the logarithms, their gradient, the logits'
      if (compute_ == 2) moment.add("logits and loss", logits * compute_);
      if (net.logit_rows_at_once > 0) moment.add("logits and loss", targets * net.hidden * compute_, 2);
    }
    add_gathered(moment, head());
    add_product(moment, head_matrix());
    moment.add("matrix gradients", trained_part(head_matrix(), head_owner()) * compute_);
    return moment;
  }

  Moment block_backward() const {
    Moment moment;
    add_waiting_activations(moment);
    if (model_.architecture) {
      const Architecture& net = *model_.architecture;
      if (setup_.activation_checkpointing) add_block_activations(moment);
      // The gradient of the widest activation, beside what it is computed of.
      moment.add("activation gradients", tokens_ * net.ffn * (is_narrow() ? 4 : compute_), 2);
    }
    add_gathered(moment, block());
    add_product(moment, block().largest_tensor);
    add_dequantized(moment, block());
    moment.add("matrix gradients", trained_part(block().largest_tensor, block()) * compute_);
    if (model_.head_shares_embeddings) {
      moment.add("matrix gradients", trained_part(head_matrix(), head_owner()) * compute_);
    }
    add_reductions(moment, block(), in_flight_ + 1);
    return moment;
  }

  // The buffer of their unit's gradient waits for the matrix's, which comes last.
  Moment embeddings_backward() const {
    Moment moment;
    add_gathered(moment, embeddings());
    // Of the embeddings, of the head that shares them, and the sum of the two, for which autograd takes over one of
    // them unless that is a product's transposed view.
    const int64_t count = model_.head_shares_embeddings ? (is_narrow() ? 2 : 3) : 1;
    moment.add("matrix gradients", trained_part(embeddings().largest_tensor, embeddings()) * compute_, count);
    add_reductions(moment, block(), in_flight_);
    if (setup_.stage >= 2) moment.add("gradients in flight", embeddings().trained() * grad_);
    return moment;
  }

  Moment embeddings_reduction() const {
    Moment moment;
    add_gathered(moment, embeddings());
    moment.add("matrix gradients", trained_part(embeddings().largest_tensor, embeddings()) * compute_,
               model_.head_shares_embeddings ? 2 : 1);
    add_reductions(moment, block(), in_flight_);
    add_reductions(moment, embeddings(), 1);
    return moment;
  }

  const ModelCensus& model_;
  const TrainingSetup& setup_;
  int64_t compute_;
  int64_t grad_;
  int64_t tokens_;
  int64_t own_tokens_;
  int64_t in_flight_;
};

Place place_of(OffloadTo offload, const TrainingSetup& setup) {
  if (offload == OffloadTo::kNvme) return Place::kNvme;
  return offload == OffloadTo::kCpu && !setup.on_cpu ? Place::kHost : Place::kDevice;
}

// What ZeRO++ keeps beside each rank's shard, to be gathered: zero/gather_source.h.
template <class Add>
void add_gather_source(const ModelCensus& model, const TrainingSetup& setup, const Add& add) {
  const int64_t pieces = setup.secondary_ranks > 1 ? layout::ceil_div(setup.ranks, setup.secondary_ranks) : 1;
  const int64_t as_they_are = model.bytes(0, setup.ranks);  // bytes, of which there is no coarser form
  const int64_t numbers = model.bytes(1, setup.ranks) - as_they_are;
  const int64_t shard = numbers * bytes_of(setup.dtypes.compute);
  if (setup.quantized_weights) {
    add("quantized parameters", Place::kDevice, pieces * kernels::quantized_bytes(numbers, kernels::kGatheredBits));
  }
  add("secondary shards", Place::kDevice, (pieces - 1) * (as_they_are + (setup.quantized_weights ? 0 : shard)));
}

// What stays between steps, and the buffers of what is offloaded to NVMe, which once they are made stay too.
void add_model_state(const ModelCensus& model, const TrainingSetup& setup, std::vector<MemoryTerm>& terms) {
  const int64_t trained_shard = model.trained_shard(setup.ranks);
  const int64_t owned = setup.stage >= 1 && !setup.sign_errors ? trained_shard : model.trained();
  const int64_t compute = bytes_of(setup.dtypes.compute);
  const int64_t grad = bytes_of(setup.dtypes.grad);
  const int64_t master = setup.dtypes.compute == setup.dtypes.master ? 0 : bytes_of(setup.dtypes.master);
  const int64_t state = setup.state_tensors * bytes_of(setup.dtypes.state);
  const Place host = setup.on_cpu ? Place::kDevice : Place::kHost;
  const OffloadTraffic traffic = offload_traffic(model, setup);
  const auto add = [&](const char* what, Place place, int64_t bytes, bool certain = true) {
    if (bytes > 0) terms.push_back({what, place, bytes, certain});
  };
  const auto add_resting = [&](const char* what, Place place, int64_t bytes, bool pins, bool certain = true) {
    if (bytes > 0) terms.push_back({what, place, bytes, certain, pins && place == Place::kHost});
  };
  const auto add_optimizers = [&](const char* what, int64_t numel, int64_t bytes_each) {
    add_resting(what, place_of(setup.optimizer, setup), traffic.optimizer_numel * bytes_each, setup.pins_optimizer);
    add(what, Place::kDevice, (numel - traffic.optimizer_numel) * bytes_each);
  };

  if (setup.stage == 3) {
    const Place place = setup.params == OffloadTo::kNone ? Place::kDevice : host;
    add_resting("parameters", place, model.bytes(compute, setup.ranks) - traffic.params_bytes, setup.pins_params);
    add("parameters", Place::kNvme, traffic.params_bytes);
    add_gather_source(model, setup, add);
  } else {
    add("parameters", Place::kDevice, model.bytes(compute));
  }
  if (setup.stage >= 2) {
    add_optimizers("gradients", trained_shard, grad);
  } else {
    add("gradients", Place::kDevice, model.trained() * grad);
  }
  add_optimizers("master weights", owned, master);
  add_optimizers("optimizer state", owned, state);
  if (setup.sign_errors && setup.ranks > 1)
    add("compression errors", Place::kDevice, (model.trained() + trained_shard) * 4);
  add("optimizer tiles", host, traffic.tile_bytes);
  add("gradients in flight to NVMe", host, traffic.gradient_bytes, /*certain=*/false);
  add("parameters in flight from NVMe", host, traffic.param_bytes, /*certain=*/false);
}

}  // namespace

int64_t targets_of(const Architecture& net, const TrainingSetup& setup) {
  const double share = net.logits_of_targets_only ? setup.target_share : 1;
  return static_cast<int64_t>(share * static_cast<double>(setup.micro_batch * setup.length));
}

int64_t MemoryNeed::bytes(Place place) const {
  int64_t sum = 0;
  for (const MemoryTerm& term : terms) sum += term.place == place ? term.bytes : 0;
  return sum;
}

int64_t MemoryNeed::pinned_bytes() const {
  int64_t sum = 0;
  for (const MemoryTerm& term : terms) sum += term.pinned ? term.bytes : 0;
  return sum;
}

int64_t MemoryNeed::certain_bytes(Place place) const {
  int64_t sum = 0;
  for (const MemoryTerm& term : terms) sum += term.place == place && term.certain ? term.bytes : 0;
  return sum;
}

MemoryNeed memory_need(const ModelCensus& model, const TrainingSetup& setup) {
  MemoryNeed need;
  add_model_state(model, setup, need.terms);

  // What the allocator keeps of freed blocks never raises the peak (storage/mapped_blocks.h).
  const std::vector<Moment> moments = StepModel(model, setup).moments();
  const auto less = [](const Moment& a, const Moment& b) { return a.bytes() < b.bytes(); };
  for (MemoryTerm term : std::max_element(moments.begin(), moments.end(), less)->terms()) {
    term.certain = term.what == "gathered parameters";
    need.terms.push_back(std::move(term));
  }
  need.terms.push_back({"the process itself", setup.on_cpu ? Place::kDevice : Place::kHost, kProcessBytes, false});
  return need;
}

TrainingSetup setup_of(const config::DsConfig& config, int64_t ranks) {
  const auto offload = [](const std::string& device) {
    if (device == "nvme") return OffloadTo::kNvme;
    return device == "cpu" ? OffloadTo::kCpu : OffloadTo::kNone;
  };
  TrainingSetup setup{.stage = config.zero.stage,
                      .optimizer = offload(config.zero.offload_optimizer.device),
                      .params = offload(config.zero.offload_param.device),
                      .ranks = ranks,
                      .micro_batch = config.batch.micro,
                      .dtypes = config.dtypes,
                      .optimizer_ratio = config.zero.offload_optimizer.ratio,
                      .sub_group_size = config.zero.sub_group_size,
                      .pipeline_read = config.zero.offload_optimizer.pipeline_read,
                      .pipeline_write = config.zero.offload_optimizer.pipeline_write,
                      .optimizer_buffers = config.zero.offload_optimizer.buffer_count,
                      .param_buffers = std::max<int64_t>(1, config.zero.offload_param.buffer_count),
                      .max_in_cpu = config.zero.offload_param.max_in_cpu,
                      .max_live_parameters = config.zero.residency.max_live_parameters,
                      .max_reuse_distance = config.zero.residency.max_reuse_distance,
                      .prefetch_bucket_size = config.zero.residency.prefetch_bucket_size,
                      .secondary_ranks = std::max<int64_t>(1, config.zero.traffic.zero_hpz_partition_size),
                      .quantized_weights = config.zero.traffic.quantized_weights,
                      .pins_optimizer = config.zero.offload_optimizer.pin_memory,
                      .pins_params = config.zero.offload_param.pin_memory,
                      .wide_products = !kernels::has_fast_products(storage::scalar_type(config.dtypes.compute))};
  if (config.optimizer) {
    const std::string& type = config.optimizer->type;
    for (const OptimizerTraits& traits : kOptimizers) {
      if (type != traits.name) continue;
      const bool has_momentum = type == "SGD" && config.optimizer->momentum != 0;
      const bool is_amsgrad = type.starts_with("Adam") && config.optimizer->params.value("amsgrad", false);
      setup.state_tensors = traits.state_tensors + (has_momentum || is_amsgrad ? 1 : 0);
      setup.elementwise = traits.elementwise;
      setup.sign_errors = traits.sign_errors;
    }
  }
  return setup;
}

int64_t bytes_of(config::Dtype dtype) { return dtype == config::Dtype::kFp32 ? 4 : 2; }

const char* name_of(OffloadTo offload) {
  switch (offload) {
    case OffloadTo::kNone:
      return "none";
    case OffloadTo::kCpu:
      return "cpu";
    case OffloadTo::kNvme:
      return "nvme";
  }
  return "none";
}

}  // namespace tessera::plan
