// A network's links (Network::links) shared out over the stages of a pipeline: stage s has those from bounds[s] up to
// bounds[s + 1], and a rank some of the stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/models/model.h"

namespace tessera::models {

// Of each link, how much it multiplies: its weights, with each of which a token is multiplied once, but for embeddings,
// the first link, which are looked up.
std::vector<double> arithmetic_of_links(const Network& network);

struct StageBounds {
  std::vector<int64_t> bounds;     // from 0 to the number of links, rising
  std::vector<int> rank_of_stage;  // along the pipeline's axis
};

// "stage 0: embeddings, layers 0-2; stage 1: layers 3-4, head"
std::string describe(const StageBounds& stages);

// Of each parameter, the ranks that have one of its links, rising.
std::map<std::string, std::vector<int>> holders_of(const Network& whole, const StageBounds& stages);

// As census_of, but of the rank's part that has most parameters.
ModelCensus census_of_stages(const Model& model, const std::string& class_name, const std::string& where,
                             int tensor_ranks, const StageBounds& stages);

// Takes the modules out of the network that this rank has no link of: then its parameters are this rank's alone.
void keep_stages_of(int rank, Network& network, const StageBounds& stages);

}  // namespace tessera::models
