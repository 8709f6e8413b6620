// What a rank sends to the others of its data-parallel groups, by formula: of n ranks that share a unit out, with
// shards of s elements of b bytes, (n - 1) b s for an all-gather and for a reduce-scatter, twice that for an
// all-reduce, which is both (of small tensors: everything to everybody, comm::Exchange::reduces_in_shards). Where
// ZeRO++ is on, as the headers gather_source.h and quantized_reduction.h say; where parameters persist, as
// persistent_params.h does, and a unit of which all do is published as at stage 2. Replicas add an all-reduce of what
// was reduced.
#pragma once

#include <cstdint>

#include "tessera/zero/unit.h"

namespace tessera::zero {

struct WireBytes {
  int64_t gather = 0;   // the parameters come together once, for a forward or a backward; stage 3
  int64_t publish = 0;  // after a step: stages 1 and 2, secondary shards, parameters that persist
  int64_t reduce = 0;   // gradients become a mean once

  int64_t of_outer = 0;  // of the three together, what goes to other inner groups
};

WireBytes wire_bytes(const Unit& unit, const Policy& policy);

}  // namespace tessera::zero
