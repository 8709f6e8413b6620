// A configuration together with the place of every key in it, so that each error can say file:line:column.
//
//   Document ds = parse_hjson(text, "ds.json");
//   ds.place(Pointer("/zero_optimization/stage")).text()   "ds.json:12:14"
//
// Keys are addressed by JSON pointer, because a key may itself contain dots (some programs pass such keys on purpose).
// Lines and columns count from 1; a column counts characters, not bytes. Values; safe to read from any thread.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::config {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;

// Keys and list elements that a file may have, far beyond any configuration. It also ends YAML aliases that multiply.
inline constexpr size_t kMostValues = 10'000;

struct Place {
  std::string file;  // as the user named it, or "--set training.epochs=2"
  int line = 0;      // 0: the file as a whole
  int column = 0;

  std::string text() const;
};

struct Document {
  std::string name;  // the file
  Json value;
  std::map<std::string, Place> places;  // JSON pointer of a key or list element -> where it is written

  // Where the key is written; of a key that is not, where its nearest enclosing object is.
  Place place(const Pointer& key) const;

  // The part of the document under `key` as a document of its own, its places kept.
  Document part(const Pointer& key) const;

  // Moves a key with all that is under it, for aliases and for deprecated names.
  void move(const Pointer& from, const Pointer& to);

  // Sets a value and the place of it and of all that is under it.
  void set(const Pointer& key, Json value, const Place& place);

  void erase(const Pointer& key);
};

// "zero_optimization.stage" of /zero_optimization/stage: how errors and tables name a key.
std::string dotted(const Pointer& key);

}  // namespace tessera::config
