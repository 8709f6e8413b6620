#include "tessera/nn/expert_dispatch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <utility>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/nn/kept_value.h"

namespace tessera::nn {
namespace {

// Rows in another order: row i afterwards is row from[i] before, and row j before is row back[j] afterwards.
struct RowOrder {
  at::Tensor from, back;  // int64

  RowOrder reversed() const { return {back, from}; }
};

// By what stands at each row, rising; equal ones as they were.
RowOrder sorted_by(const at::Tensor& numbers) {
  const at::Tensor from = at::argsort(numbers, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor back = at::empty_like(from);
  back.scatter_(0, from, at::arange(from.size(0), from.options()));
  return {from, back};
}

// (rows, width) -> (copies * rows, width): as if each row stood there so many times, one after another, in another
// order.
class ReorderedRows : public torch::autograd::Function<ReorderedRows> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows, const at::Tensor& from,
                            const at::Tensor& back, int64_t copies) {
    context->save_for_backward({back});
    context->saved_data["copies"] = copies;
    return rows.index_select(0, copies == 1 ? from : from.div(copies, "floor"));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::NoGradGuard no_grad;
    const int64_t copies = context->saved_data["copies"].toInt();
    at::Tensor grad = grads[0].index_select(0, context->get_saved_variables()[0]);
    if (copies > 1) grad = grad.view({grad.size(0) / copies, copies, grad.size(1)}).sum(1);
    return {grad, {}, {}, {}};
  }
};

at::Tensor reordered(const at::Tensor& rows, const RowOrder& order, int64_t copies = 1) {
  return ReorderedRows::apply(rows, order.from, order.back, copies);
}

using Counts = std::vector<int64_t>;

Counts counts_in(const at::Tensor& counts) {
  const at::Tensor on_host = counts.cpu().contiguous();
  const auto* const values = on_host.const_data_ptr<int64_t>();
  return {values, values + on_host.numel()};
}

// How many rows go to each rank, and come from it.
struct RowsOfRanks {
  std::shared_ptr<comm::Group> group;
  Counts sent, received;

  RowsOfRanks reversed() const { return {group, received, sent}; }
};

at::Tensor sent_rows(const RowsOfRanks& between, const at::Tensor& rows) {
  const int64_t all = std::accumulate(between.received.begin(), between.received.end(), int64_t{0});
  const int64_t width = rows.size(1);
  const at::Tensor from = rows.contiguous();
  at::Tensor arrived = at::empty({all, width}, rows.options().requires_grad(false));
  std::vector<at::Tensor> outgoing, incoming;
  int64_t sent = 0, received = 0;
  for (size_t rank = 0; rank < between.sent.size(); ++rank) {
    outgoing.push_back(from.narrow(0, sent, between.sent[rank]).view({between.sent[rank] * width}));
    incoming.push_back(arrived.narrow(0, received, between.received[rank]).view({between.received[rank] * width}));
    sent += between.sent[rank];
    received += between.received[rank];
  }
  between.group->start_all_to_all(incoming, outgoing, "tokens for experts").finish_for(arrived);
  return arrived;
}

class SentRows : public torch::autograd::Function<SentRows> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows,
                            const RowsOfRanks& between) {
    context->saved_data["between"] = keep(between);
    return sent_rows(between, rows);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::NoGradGuard no_grad;
    return {sent_rows(kept<RowsOfRanks>(context->saved_data["between"]).reversed(), grads[0]), {}};
  }
};

// Rows sorted by expert, so many of each.
at::Tensor run_one_by_one(const at::Tensor& rows, const Counts& of_experts, const RunExpert& run) {
  std::vector<at::Tensor> results;
  int64_t first = 0;
  for (size_t expert = 0; expert < of_experts.size(); ++expert) {
    results.push_back(run(static_cast<int64_t>(expert), rows.narrow(0, first, of_experts[expert])));
    first += of_experts[expert];
  }
  return at::cat(results, 0);
}

// Of each rank's tokens, how many are for each expert of this one: (ranks, own experts). `counts` (experts): of this
// rank's.
at::Tensor counts_for_own(const at::Tensor& counts, int64_t experts, const ExpertAxis& axis) {
  const int64_t own = axis.own(experts).numel();
  const at::Tensor all = at::empty({axis.size(), own}, counts.options());
  std::vector<at::Tensor> outgoing, incoming;
  for (int rank = 0; rank < axis.size(); ++rank) {
    outgoing.push_back(counts.narrow(0, axis.of_rank(rank, experts).begin, own));
    incoming.push_back(all.select(0, rank));
  }
  axis.group()->start_all_to_all(incoming, outgoing, "tokens of experts").finish_for(all);
  return all;
}

// Rows sorted by expert through experts that other ranks have.
at::Tensor run_elsewhere(const at::Tensor& rows, const at::Tensor& counts, int64_t experts, const ExpertAxis& axis,
                         const RunExperts& run) {
  const int64_t own = axis.own(experts).numel();
  const at::Tensor arriving = counts_for_own(counts, experts, axis);
  const RowsOfRanks between{.group = axis.group(),
                            .sent = counts_in(counts.view({axis.size(), own}).sum(1)),
                            .received = counts_in(arriving.sum(1))};
  const at::Tensor expert_of_row =
      at::arange(own, counts.options()).repeat({axis.size()}).repeat_interleave(arriving.view({axis.size() * own}));
  const RowOrder by_expert = sorted_by(expert_of_row);
  const at::Tensor here = reordered(SentRows::apply(rows, between), by_expert);
  const at::Tensor results = run(here, counts_in(arriving.sum(0)));
  return SentRows::apply(reordered(results, by_expert.reversed()), between.reversed());
}

}  // namespace

at::Tensor through_experts(const at::Tensor& tokens, const Routing& routing, int64_t experts, const ExpertAxis& axis,
                           const RunExpert& run) {
  return through_experts_at_once(
      tokens, routing, experts, axis,
      [&run](const at::Tensor& rows, const Counts& of_experts) { return run_one_by_one(rows, of_experts, run); });
}

at::Tensor through_experts_at_once(const at::Tensor& tokens, const Routing& routing, int64_t experts,
                                   const ExpertAxis& axis, const RunExperts& run) {
  const int64_t each = routing.experts.size(1);
  const at::Tensor expert_of_row = routing.experts.reshape({tokens.size(0) * each});
  const RowOrder by_expert = sorted_by(expert_of_row);
  const at::Tensor of_all = at::bincount(expert_of_row, /*weights=*/{}, experts + 1);
  const at::Tensor counts = of_all.narrow(0, 0, experts);
  const int64_t taken = expert_of_row.size(0) - of_all[experts].item<int64_t>();  // the others stand last
  const at::Tensor rows = reordered(tokens, by_expert, each).narrow(0, 0, taken);
  at::Tensor results =
      axis.size() == 1 ? run(rows, counts_in(counts)) : run_elsewhere(rows, counts, experts, axis, run);
  if (taken < expert_of_row.size(0)) {
    results = at::cat({results, at::zeros({expert_of_row.size(0) - taken, tokens.size(1)}, results.options())}, 0);
  }
  const at::Tensor in_order = reordered(results, by_expert.reversed()).view({tokens.size(0), each, tokens.size(1)});
  return (in_order * routing.weights.to(tokens.scalar_type()).unsqueeze(2)).sum(1);
}

}  // namespace tessera::nn
