// How long each link of a model takes, forward and backward, where layers are to be shared out over a pipeline by time.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <vector>

#include "tessera/models/model.h"

namespace tessera::train {

// Of each link (Network::links) the seconds of a micro batch: the least of three. One link's parameters exist at a
// time, of values that mean nothing; whole, whatever ranks share them. Not collective.
std::vector<double> seconds_of_links(const models::Model& model, const models::NamedTensors& batch, at::Device device,
                                     at::ScalarType dtype);

}  // namespace tessera::train
