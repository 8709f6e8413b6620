#include "tessera/engine/layer_pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/comm/group.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/pipeline_run.h"
#include "tessera/layout/mesh_shape.h"
#include "tessera/pipeline/partition.h"
#include "tessera/pipeline/schedule.h"

namespace tessera {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& fix) {
  throw Error(ErrorKind::kUsage, {what, "the layers of a pipeline", fix});
}

std::vector<int64_t> bounds_by_parameters(const torch::nn::Sequential& layers, int stages) {
  if (layers->size() < static_cast<size_t>(stages)) {
    refuse(fmt::format("{} are more than there are layers, {}", count_of(stages, "stage"), layers->size()),
           "use fewer ranks, or fewer stages on each");
  }
  std::vector<double> weights;
  for (const torch::nn::AnyModule& layer : *layers) {
    weights.push_back(0);
    for (const at::Tensor& parameter : layer.ptr()->parameters()) {
      weights.back() += static_cast<double>(parameter.numel());
    }
  }
  return pipeline::balanced_bounds(weights, stages);
}

void check_bounds(const std::vector<int64_t>& bounds, int stages, size_t layers) {
  const bool rise = std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
  if (rise && bounds.size() == static_cast<size_t>(stages) + 1 && bounds.front() == 0 &&
      bounds.back() == static_cast<int64_t>(layers)) {
    return;
  }
  refuse(fmt::format("the bounds are not those of {} with {} in all", count_of(stages, "stage"),
                     count_of(static_cast<int64_t>(layers), "layer")),
         fmt::format("give {} numbers that rise from 0 to {}", stages + 1, layers));
}

}  // namespace

// Which rank has which layers, and the layers of this one.
class LayerPipeline::Stages {
 public:
  Stages(const torch::nn::Sequential& layers, int own_rank, const pipeline::Schedule& schedule,
         std::vector<int64_t> bounds)
      : bounds_(std::move(bounds)), rank_of_stage_(schedule.rank_of_stage) {
    if (bounds_.empty()) bounds_ = bounds_by_parameters(layers, schedule.stages());
    check_bounds(bounds_, schedule.stages(), layers->size());
    require_own_parameters(layers);
    int64_t number = 0;
    for (const torch::nn::AnyModule& layer : *layers) {
      if (rank_of_layer(number) == own_rank) {
        own_->register_module(std::to_string(number), layer.ptr());
        layers_.emplace(number, layer);
      }
      ++number;
    }
  }

  const std::vector<int64_t>& bounds() const { return bounds_; }

  // This rank's layers, by the names that they have among all.
  const std::shared_ptr<torch::nn::Module>& own() const { return own_; }

  // Tells of a parameter which ranks have it.
  void specify(layout::ParamSpec& spec) const {
    const int64_t layer = std::stoll(spec.name.substr(0, spec.name.find('.')));
    spec.holders.push_back({layout::kPipelineAxis, {rank_of_layer(layer)}});
  }

  // A stage's layers, one after another.
  at::Tensor run(int of, at::Tensor x) {
    const auto stage = static_cast<size_t>(of);
    for (int64_t layer = bounds_[stage]; layer < bounds_[stage + 1]; ++layer) {
      x = layers_.at(layer).forward<at::Tensor>(x);
    }
    return x;
  }

 private:
  int rank_of_layer(int64_t layer) const {
    const auto after = std::upper_bound(bounds_.begin(), bounds_.end(), layer);
    return rank_of_stage_[static_cast<size_t>(after - bounds_.begin()) - 1];
  }

  void require_own_parameters(const torch::nn::Sequential& layers) const {
    std::map<const void*, int64_t> first_with;
    int64_t number = 0;
    for (const torch::nn::AnyModule& layer : *layers) {
      for (const at::Tensor& parameter : layer.ptr()->parameters()) {
        const int64_t first = first_with.emplace(parameter.unsafeGetTensorImpl(), number).first->second;
        if (rank_of_layer(first) != rank_of_layer(number)) {
          refuse(fmt::format("layers {} and {} have a parameter in common, and are on different ranks", first, number),
                 "give bounds that put them on one rank, or each a parameter of its own");
        }
      }
      ++number;
    }
  }

  std::vector<int64_t> bounds_;
  std::vector<int> rank_of_stage_;
  std::map<int64_t, torch::nn::AnyModule> layers_;
  std::shared_ptr<torch::nn::Module> own_ = std::make_shared<torch::nn::Module>();
};

class LayerPipeline::Impl {
 public:
  Impl(const torch::nn::Sequential& layers, const config::DsConfig& config, InitializeOptions options,
       const LayerPipelineOptions& wanted)
      : mesh_(options.mesh),
        stages_(layers, mesh_->coordinate(layout::kPipelineAxis),
                pipeline::make_schedule(wanted.schedule, {.ranks = mesh_->shape().size(layout::kPipelineAxis),
                                                          .micro_batches = static_cast<int>(config.batch.accumulation),
                                                          .stages_per_rank = wanted.stages_per_rank}),
                wanted.bounds),
        engine_(stages_.own(), config, completed(std::move(options))),
        run_(engine_, *mesh_, wanted.schedule, wanted.stages_per_rank) {}

  ModuleEngine& engine() { return engine_; }
  const Stages& stages() const { return stages_; }
  int micro_batches() const { return run_.schedule().micro_batches; }

  double train(const Inputs& inputs, const Loss& loss) {
    engine_.train();
    at::Tensor sum = no_losses();
    run_.train(micro_batches(), pass_of(inputs, loss, sum));
    engine_.step();
    return mean(std::move(sum), micro_batches());
  }

  double evaluate(const Inputs& inputs, const Loss& loss, int count) {
    engine_.eval();
    at::Tensor sum = no_losses();
    run_.evaluate(count, pass_of(inputs, loss, sum));
    engine_.train();
    return mean(std::move(sum), count);
  }

 private:
  InitializeOptions completed(InitializeOptions options) const {
    options.specify = [given = std::move(options.specify), this](layout::ParamSpec& spec) {
      if (given) given(spec);
      stages_.specify(spec);
    };
    return options;
  }

  static at::Tensor no_losses() { return at::zeros({1}, at::kDouble); }

  engine::RunStage pass_of(const Inputs& inputs, const Loss& loss, at::Tensor& sum) {
    return [&](const engine::StagePass& pass) -> std::vector<at::Tensor> {
      const at::Tensor x = stages_.run(pass.stage, pass.stage == 0 ? inputs(pass.micro_batch) : pass.entering.at(0));
      if (!run_.is_last(pass.stage)) return {x};
      const at::Tensor found = loss(x, pass.micro_batch);
      sum += found.detach().to(at::kCPU, at::kDouble);
      return {found};
    };
  }

  double mean(at::Tensor sum, int of_each) {
    const int of_ranks = mesh_->shape().replicas();
    run_.ranks_of_losses().start_all_reduce(sum, 1.0 / (of_each * of_ranks), "losses").finish();
    return sum.item<double>();
  }

  std::shared_ptr<comm::Mesh> mesh_;
  Stages stages_;
  ModuleEngine engine_;
  engine::PipelineRun run_;
};

LayerPipeline::LayerPipeline(const torch::nn::Sequential& layers, const Configuration& config,
                             InitializeOptions options, LayerPipelineOptions pipeline) {
  if (!options.mesh)
    refuse("there is no mesh, whose axis pp the stages are spread over", "give InitializeOptions::mesh");
  const config::DsConfig resolved = config.for_ranks(options.mesh->shape().readers());
  impl_ = std::make_unique<Impl>(layers, resolved, std::move(options), pipeline);
}

LayerPipeline::~LayerPipeline() = default;

double LayerPipeline::train_batch(const Inputs& inputs, const Loss& loss) { return impl_->train(inputs, loss); }

double LayerPipeline::eval_batch(const Inputs& inputs, const Loss& loss, int micro_batches) {
  return impl_->evaluate(inputs, loss, micro_batches > 0 ? micro_batches : impl_->micro_batches());
}

Engine& LayerPipeline::engine() { return impl_->engine(); }

const std::vector<int64_t>& LayerPipeline::bounds() const { return impl_->stages().bounds(); }

}  // namespace tessera
