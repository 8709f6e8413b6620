// Checks a document against a table of keys, and resolves what the table says of it. ds_config and run file share it.
//
//   1. rename_aliases   every alias and deprecated name becomes the key that it stands for
//   2. check_keys       unknown and removed keys, types, ranges; values get one form (5e8 an integer, choices as
//   listed)
//   3. resolve_keys     one row for every key that applies: its value or its default, and where that came from
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/ds_config.h"
#include "tessera/config/key_table.h"
#include "tessera/config/problems.h"

namespace tessera::config {

struct KeyCheck {
  std::span<const Key> table;
  bool (*accepts_auto)(std::string_view path) = nullptr;  // of which keys "auto" may be the value; null: of none
  bool lenient = false;                                   // see DsConfigInput::unknown_keys_are_errors
  Door door = Door::kNative;
  Problems problems = {};
  std::vector<std::string> warnings = {};
};

void rename_aliases(Document& document, KeyCheck& check);
void check_keys(Document& document, KeyCheck& check);
std::vector<ResolvedKey> resolve_keys(const Document& document, const KeyCheck& check);

// "/zero_optimization/stage" of "zero_optimization.stage"; for paths of a table only.
Pointer pointer_to(std::string_view path);

// The value of the key `type` of the block that a path is in, which decides the rows with `when`; empty without one.
std::string block_type(const Json& root, std::string_view path);

}  // namespace tessera::config
