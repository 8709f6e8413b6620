// Ranks train one model, and a collective over different parameters would wait for its time-out or mix them up: so the
// ranks compare what they have before anything else is exchanged.
#pragma once

#include "tessera/comm/group.h"
#include "tessera/engine/model_tree.h"

namespace tessera::engine {

// Collective. ErrorKind::kUsage on every rank, with the first rank and parameter that differ from rank 0's: in name,
// order, shape, unit, requires_grad, or in whether there are values. Moves a hash; the names only where it differs.
void require_same_model(const ModelTree& tree, comm::Group& world);

}  // namespace tessera::engine
