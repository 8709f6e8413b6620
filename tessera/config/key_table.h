// The one list of keys. Each row says of a key its type and range, its default, what it means, and what this version
// makes of it; reading, checking, explaining (`tessera config keys`, docs/config.md) and the tests all walk these rows.
//
// To support a key that was refused: change its status here (or widen `supported`), and read it where it acts.
// Constant data; safe to read from any thread.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/ds_config.h"
#include "tessera/config/where.h"

namespace tessera::config {

enum class Status {
  kHonoured,    // acts as described
  kNoEffect,    // accepted; a warning when it is set to something else than its default
  kAlwaysSo,    // accepted; what it asks for is always so here
  kNotYet,      // accepted at its default and at the values in `supported`; an error otherwise
  kAlias,       // another name of the key in `instead`
  kDeprecated,  // an old name of the key in `instead`; a warning
  kRemoved,     // refused; `instead` says why and what to write
};

enum class Type {
  kBool,
  kInt,         // 5e8 is one
  kIntOrNever,  // infinity means never
  kNumber,
  kNumberOrList,  // one value, or one a parameter group
  kNumberList,
  kIntList,
  kPair,  // two numbers
  kText,
  kTextList,  // a list of text; a single text is a list of one
  kChoice,    // one of `choices`
  kIntOrChoice,
  kObject,      // its keys are rows of their own
  kOpenObject,  // its keys are not checked
  kAny,
};

struct Kind {
  Type type;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;         // low itself is out of range
  bool below_high = false;        // high itself is out of range
  std::string_view choices = {};  // "none|cpu|nvme"; compared without regard to case
};

// Kinds that both lists of rows name.
inline constexpr Kind kBlock{Type::kObject};
constexpr Kind at_least(double low, Type type = Type::kInt) { return {.type = type, .low = low}; }

// What only some rows have.
struct Notes {
  std::optional<Status> in_python = {};  // where that differs: what becomes of it in Python programs
  std::string_view supported = {};       // kNotYet: JSON list of the values that are fine
  std::string_view instead = {};         // kAlias, kDeprecated: the path; kRemoved, kNotYet: the reason and the remedy
  std::string_view when = {};            // only for these values of the block's key `type`, "WarmupLR|WarmupDecayLR"
  bool of_host = false;                  // ranks may differ in it: a path, or how to use a drive
};

struct Key {
  std::string_view path;  // "zero_optimization.stage"
  Kind kind;
  std::string_view default_value;  // as JSON; "null": absent; "required": must be given when its object is
  Status status;
  std::string_view meaning;
  Notes notes = {};
};

// In the order in which they are shown. Parents come before their children.
std::span<const Key> ds_config_keys();
std::span<const Key> run_file_keys();

// "int >= 0", "none, cpu or nvme": the type and range as people read it.
std::string describe(const Kind& kind);
std::string describe(Status status);

// What becomes of the key at a door.
Status status_of(const Key& key, Door door);

// Of both: "no effect (Python: honoured)".
std::string describe_status(const Key& key);

// The default as a value; null also for "required".
Json default_of(const Key& key);

// "a|b|c" -> {"a", "b", "c"}.
std::vector<std::string> split_choices(std::string_view choices);

// Whether a row applies when its block's `type` is this (empty: the block has none, or its type is not listed
// anywhere).
bool applies(const Key& key, std::string_view type);

}  // namespace tessera::config
