// Reads JSON as people write it in ds_config files: with // and /* */ comments, trailing commas, a byte order mark, and
// Infinity (Python writes it). Everything else is JSON, strictly; a key given twice is refused.
#pragma once

#include <string>
#include <string_view>

#include "tessera/config/where.h"

namespace tessera::config {

// `name` is the file shown in places. ErrorKind::kConfig with line and column at the first thing that is not JSON.
Document parse_commented_json(std::string_view text, const std::string& name);

}  // namespace tessera::config
