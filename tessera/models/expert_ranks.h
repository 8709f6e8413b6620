// A network's experts shared out over the ranks of an axis of the mesh.
#pragma once

#include <functional>

#include "tessera/layout/param_spec.h"
#include "tessera/models/model.h"
#include "tessera/nn/expert_axis.h"

namespace tessera::models {

// Takes the experts out of the network that other ranks have (Network::share_experts). Returns what tells of each
// parameter which ranks have it, for InitializeOptions::specify.
std::function<void(layout::ParamSpec&)> keep_experts_of(Network& network, const nn::ExpertAxis& axis);

}  // namespace tessera::models
