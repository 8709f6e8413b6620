// Reads Hjson, which is JSON as people write it in ds_config files, and what DeepSpeed reads: comments (# // /* */),
// commas that may be missing or follow the last value, keys without quotes, text in single quotes, in three of them
// over several lines, or without any up to the end of its line, and no braces around the whole. JSON is Hjson; so are
// NaN and Infinity, which Python's json writes. The grammar of both doors.
//
// Stricter than Hjson where that would only hide a mistake: a key given twice, True, False and None, and what looks
// like a number and is none (01, 1e) before a comma or bracket.
#pragma once

#include <string>
#include <string_view>

#include "tessera/config/where.h"

namespace tessera::config {

// `name` is the file shown in places. ErrorKind::kConfig with line and column at the first thing that cannot be read.
Document parse_hjson(std::string_view text, const std::string& name);

}  // namespace tessera::config
