// A network's links (Network::links) shared out over the stages of a pipeline: stage s has those from bounds[s] up to
// bounds[s + 1], and a rank some of the stages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/layout/param_spec.h"
#include "tessera/models/census.h"
#include "tessera/models/model.h"
#include "tessera/pipeline/schedule.h"

namespace tessera::models {

struct StageBounds {
  std::vector<int64_t> bounds;     // from 0 to the number of links, rising
  std::vector<int> rank_of_stage;  // along the pipeline's axis
};

// Of each link, how much it multiplies: the weights of its modules, with each of which a token is multiplied once; the
// last link's `target_share` of the tokens, those that have a label.
std::vector<double> arithmetic_of_links(const Network& network, double target_share = 1);

// The schedule's stages, so that the one that multiplies most does so as little as can be. The network has as many
// links as the schedule stages, or more.
StageBounds balanced_stages(const Network& network, const pipeline::Schedule& schedule, double target_share = 1);

// How links are shared out.
struct Partition {
  // What is balanced, so that the stage that has most of it has as little as can be: "arithmetic", what links multiply;
  // "parameters"; "uniform", links; "type:<regular expression>", links whose kind has a match, in any case, as
  // DeepSpeed's partition_method; "time", the seconds that each link takes, and what links multiply where these are not
  // known.
  std::string by = "arithmetic";
  std::vector<double> seconds = {};
  std::vector<int64_t> sizes = {};  // or by hand: how many links each stage has
};

// ErrorKind::kConfig, at `where`, for sizes that are not those of the stages and the links, and for what `by` is not.
StageBounds partitioned_stages(const Network& network, const Partition& partition, const pipeline::Schedule& schedule,
                               double target_share, const std::string& where);

// "stage 0: embeddings, layers 0-2; stage 1: layers 3-4, head"
std::string describe(const StageBounds& stages, const std::vector<Link>& links);

// As census_of, but of the rank's part that has most parameters.
ModelCensus census_of_stages(const Model& model, const std::string& class_name, const std::string& where,
                             const PartRanks& ranks, const StageBounds& stages);

// Takes the modules out of the network that this rank has no link of: then its parameters are this rank's alone.
// Returns what tells of each of them which ranks have it, for InitializeOptions::specify.
std::function<void(layout::ParamSpec&)> keep_stages_of(int rank, Network& network, const StageBounds& stages);

// One stage's links: Network::run_links.
std::vector<at::Tensor> run_stage(Network& network, const StageBounds& stages, int stage,
                                  const std::vector<at::Tensor>& entering, const NamedTensors& batch);

}  // namespace tessera::models
