// Shows a resolved configuration and the table of keys, for `tessera config` and docs/config.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/config/ds_config.h"
#include "tessera/config/key_table.h"

namespace tessera::config {

enum class Shown {
  kGiven,  // what the user has set
  kAll,    // and every default
};

// One line a key: "zero_optimization.stage   3   ds.json:12:14", in columns.
std::string print_resolved(const std::vector<ResolvedKey>& keys, Shown shown);

// All of them as a JSON array of {"key", "value", "origin"}.
Json resolved_as_json(const std::vector<ResolvedKey>& keys);

std::string print_key_table(std::span<const Key> table);

// docs/config.md, whole.
std::string config_page();

}  // namespace tessera::config
