// A batch through a network: its arrays as tensors on the engine's device, and the loss that the network makes of them.
#pragma once

#include "tessera/data/batch.h"
#include "tessera/engine/engine.h"
#include "tessera/models/model.h"
#include "tessera/train/task.h"

namespace tessera::train {

using NetworkEngine = ModelEngine<models::Network>;

// Network::loss_sum, with the batch's own counts of targets and tokens.
BatchLoss batch_loss(NetworkEngine& engine, const data::Batch& batch);

}  // namespace tessera::train
