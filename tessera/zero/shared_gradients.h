// Gradients of parameters that several ranks of a model axis hold and use apart (layout::Holders): a pipeline's
// embeddings and the head that is tied to them.
#pragma once

#include "tessera/zero/sharded_model.h"

namespace tessera::zero {

// Once all ranks' gradients are reduced: each holder's becomes the sum of all holders'. Collective over the holders.
void sum_over_holders(ShardedModel& model);

}  // namespace tessera::zero
