// `--set training.max_steps=50`: a key of a document, set from the command line. The value is YAML, so that
// `--set data.train=[a.parquet, b.parquet]` works; its place reads "--set training.max_steps=50".
#pragma once

#include <string>
#include <vector>

#include "tessera/config/where.h"

namespace tessera::config {

// `shown_prefix` stands before the key in places, for a document that is part of another. ErrorKind::kUsage for what is
// not KEY=VALUE, and for a key under something that is not an object.
void apply_overrides(Document& document, const std::vector<std::string>& overrides,
                     const std::string& shown_prefix = "");

}  // namespace tessera::config
