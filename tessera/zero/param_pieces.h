// One parameter in pieces, one a rank, that together are all of it: ranges of the flattened parameter, in elements,
// empty where a rank has none.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/zero/layout.h"

namespace tessera::zero {

// The part of a unit's parameter that lies in `buffer`, a range of the unit's buffer.
Range piece_in(const Layout& layout, Range buffer, size_t param);

// Of each rank: what its slice of the unit holds.
std::vector<Range> pieces_of(const Layout& layout, size_t param);

// The flat whole of which this rank has `mine`; in the dtype of that. Collective.
at::Tensor assembled(const std::vector<Range>& pieces, const at::Tensor& mine, comm::Communicator& world,
                     const std::string& label);

}  // namespace tessera::zero
