// Start here: all that a program needs. docs/api.md says which header has what; examples/train_bert.cpp uses most of it
// in 70 lines.
//
//   auto world  = tessera::init_distributed();
//   auto engine = tessera::initialize(model, "ds_config.json", {.world = world});
//   engine->forward(…), engine->backward(loss), engine->step(), engine->save_checkpoint(folder)
#pragma once

#include "tessera/base/error.h"             // what goes wrong, where, and what to do about it
#include "tessera/checkpoint/checkpoint.h"  // what saving and loading can be told; a checkpoint as a Hugging Face folder
#include "tessera/cli/run.h"                // the program `tessera`, with parts of your own
#include "tessera/comm/group.h"             // init_distributed, and the ranks of a run
#include "tessera/comm/mesh.h"              // … on named axes
#include "tessera/data/mlm_collator.h"      // text to masked batches
#include "tessera/engine/engine.h"          // initialize, Engine
#include "tessera/engine/layer_pipeline.h"     // lists of layers over a pipeline
#include "tessera/models/model.h"              // models of Hugging Face folders, and their weights
#include "tessera/monitor/monitor.h"           // who hears of a run's steps
#include "tessera/nn/activation_checkpoint.h"  // computing activations again instead of keeping them
#include "tessera/nn/layers.h"       // layers whose parameters need no memory before the engine gives them some
#include "tessera/nn/unit_module.h"  // for models of your own
#include "tessera/train/task.h"      // data and a loss, for …
#include "tessera/train/trainer.h"   // … the loop of `tessera train`

namespace tessera {

using comm::init_distributed;

}  // namespace tessera
