// What a program has found out about where it runs, for people and for other programs: `tessera env` and `ds_report`
// show these. Values.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct Fact {
  std::string topic;                        // "memory"; facts of one topic stand together
  std::string name;                         // "available"
  std::string value;                        // "7.9 GB"
  std::optional<uint64_t> number = {};      // the quantity that `value` shows, in bytes or as a count, where it is one
  std::optional<std::string> warning = {};  // what will go wrong, and what to do about it
};

// A quantity; "7.9 GB" and "20,000".
Fact fact_of_bytes(const std::string& topic, const std::string& name, uint64_t bytes);
Fact fact_of_count(const std::string& topic, const std::string& name, uint64_t count);

// Those of all parts, in their order.
std::vector<Fact> joined(std::initializer_list<std::vector<Fact>> parts);

// One line a fact, under a line a topic; then the warnings. Ends with a newline.
std::string facts_text(const std::vector<Fact>& facts);

// A list of {"topic", "name", "value", "number", "warning"}; the last two are null where there is none.
nlohmann::ordered_json facts_json(const std::vector<Fact>& facts);

// "/dev/shm, size: only 67.1 MB …" of each that has a warning.
std::vector<std::string> warnings_of(const std::vector<Fact>& facts);

}  // namespace tessera
