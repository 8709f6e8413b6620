// What of ZeRO++ a configuration asks for, checked against the ranks that there are.
#pragma once

#include <string>

#include "tessera/comm/mesh.h"
#include "tessera/config/zero_options.h"
#include "tessera/zero/policy.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::engine {

// The inner groups are those of zero_hpz_partition_size; else, for quantized_gradients, the ranks of each host, where
// the launcher said how many these are and all hosts have as many. ErrorKind::kConfig where ranks do not divide, or
// what is offloaded would have to stay in memory. Collective.
zero::Traffic traffic_of(const config::ZeroOptions& zero, comm::Mesh& mesh, at::Device device);

// ErrorKind::kConfig where the ranks do not make groups of zero_hpz_partition_size.
void check_traffic(const config::ZeroOptions& zero, const layout::MeshShape& mesh);

// "parameters are gathered within groups of 2 ranks, in 8 bits; …", with the bytes that a rank sends for it in each
// micro step. Empty where nothing of ZeRO++ is on.
std::string traffic_in_words(const zero::ShardedModel& model);

}  // namespace tessera::engine
