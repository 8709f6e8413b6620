// Replaces the "auto" of each resolved key; auto_values.h says by what.
#pragma once

#include <string_view>
#include <vector>

#include "tessera/config/auto_values.h"
#include "tessera/config/ds_config.h"
#include "tessera/config/problems.h"

namespace tessera::config {

// Whether "auto" may be the value of the key.
bool accepts_auto(std::string_view path);

// The batch keys keep their "auto": the batch arithmetic fills them in. `document` gives the places of problems.
void fill_auto(std::vector<ResolvedKey>& keys, const AutoValues& known, const Document& document, Problems& problems);

}  // namespace tessera::config
