// A torch.optim parameter group as the engine takes it.
#pragma once

#include <pybind11/pybind11.h>

#include "tessera/optim/optimizer.h"

namespace tessera::python {

// The keys lr, betas, eps, weight_decay, momentum and use_muon of `group`, those that are there; the rest as in
// `defaults`. (AdamW's names; SGD's and Adagrad's groups have the same ones.)
optim::ParamGroup param_group_of(const pybind11::dict& group, optim::ParamGroup defaults);

}  // namespace tessera::python
