// One parameter in pieces, one a rank, that together are all of it: ranges of the flattened parameter, in elements,
// empty where a rank has none.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/layout/flat_layout.h"

namespace tessera::zero {

// The flat whole of which this rank has `mine`; in the dtype of that. Collective.
at::Tensor assembled(const std::vector<layout::Range>& pieces, const at::Tensor& mine, comm::Group& group,
                     const std::string& label);

// ErrorKind::kUsage where a program names a rank that there is not, as the one that writes to gathered parameters.
void require_writer(int rank, int ranks);

}  // namespace tessera::zero
