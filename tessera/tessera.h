// Start here: all that a program needs. examples/train_bert.cpp uses most of it in 60 lines.
//
//   auto world  = tessera::init_distributed();
//   auto engine = tessera::initialize(model, "ds_config.json", {.world = world});
//   engine->forward(…), engine->backward(loss), engine->step(), engine->save_checkpoint(folder)
#pragma once

#include "tessera/base/error.h"            // what goes wrong, where, and what to do about it
#include "tessera/base/trace.h"            // start_tracing: what the ranks do when, …
#include "tessera/checkpoint/export_hf.h"  // a checkpoint as a Hugging Face folder
#include "tessera/comm/group.h"            // the ranks of a run
#include "tessera/comm/rendezvous.h"       // init_distributed
#include "tessera/data/loader.h"           // batches of this rank, shuffled, sharded
#include "tessera/data/mlm_collator.h"     // text to masked batches
#include "tessera/data/tokenizer.h"
#include "tessera/engine/engine.h"              // initialize, Engine
#include "tessera/engine/timeline.h"            // … as a file
#include "tessera/models/bert.h"                // a model of the field …
#include "tessera/models/pretrained_weights.h"  // … and its weights
#include "tessera/nn/activation_checkpoint.h"   // computing activations again instead of keeping them
#include "tessera/nn/tiled_linear.h"            // layers that are gathered tile by tile
#include "tessera/nn/unit_module.h"             // for models of your own
#include "tessera/train/batch_loss.h"           // the loss of a batch
#include "tessera/zero/gathered.h"              // whole parameters, to look at

namespace tessera {

using comm::init_distributed;

}  // namespace tessera
