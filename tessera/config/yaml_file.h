// Reads YAML into the same form as JSON, places included. Plain scalars become null, bool, int or number as in YAML's
// core schema, and so does 5e8 (which YAML 1.1 would call text); a key given twice is refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tessera/config/where.h"

namespace tessera::config {

Document parse_yaml(const std::string& text, const std::string& name);

// Whether a file of this name is YAML, whatever is in it.
bool is_yaml_name(const std::string& path);

// By the name: JSON (.json) or YAML (.yaml, .yml); of another name, JSON when the text begins with '{', comments aside.
// ErrorKind::kConfig also when the file cannot be read.
Document load_document(const std::string& path);

// The value as YAML, its blocks in their order: what reads back as it.
std::string to_yaml(const nlohmann::ordered_json& value);

// The contents of a configuration file; ErrorKind::kConfig when it cannot be read.
std::string read_text(const std::string& path);

}  // namespace tessera::config
