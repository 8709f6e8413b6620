// A config.json's values, read with bounds: each that makes no sense is ErrorKind::kData and is named.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/models/model.h"

namespace tessera::models {

class ConfigValues {
 public:
  explicit ConfigValues(const ModelConfig& file) : file_(file) {}

  bool is_null(const char* key) const {
    const auto found = file_.values.find(key);
    return found != file_.values.end() && found->is_null();
  }

  // `otherwise` where it is absent or null.
  template <class Value>
  Value get(const char* key, Value otherwise) const {
    return json_value(file_.values, key, std::move(otherwise), file_.path);
  }

  // Of tensors: beyond 1e9 one is a slip of the pen, and products overflow.
  int64_t size(const char* key, int64_t otherwise, int64_t lowest = 1) const {
    const auto size = get<int64_t>(key, otherwise);
    require(size >= lowest && size <= 1'000'000'000, key, size, fmt::format("use a number from {} to 1e9", lowest));
    return size;
  }
  int64_t layers(const char* key, int64_t otherwise) const {
    const auto layers = get<int64_t>(key, otherwise);
    require(layers >= 0 && layers <= 100'000, key, layers, "use a number from 0 to 100000");
    return layers;
  }
  // Of keys and values, each shared by a group of as many of the heads.
  int64_t key_heads(int64_t otherwise, int64_t heads) const {
    const auto key_heads = size("num_key_value_heads", otherwise);
    if (heads % key_heads == 0) return key_heads;
    refuse(fmt::format("num_key_value_heads, {}, does not divide num_attention_heads, {}", key_heads, heads),
           "check the file, or get it again");
  }
  // -1: none.
  int64_t padding_id(int64_t otherwise, int64_t vocab_size) const {
    const auto id = get<int64_t>("pad_token_id", is_null("pad_token_id") ? -1 : otherwise);
    if (id >= -1 && id < vocab_size) return id;
    refuse(fmt::format("pad_token_id is {}, of {} tokens", id, vocab_size), "use one of the vocabulary, or null");
  }
  double probability(const char* key, double otherwise) const {
    const double value = get(key, otherwise);
    require(value >= 0 && value < 1, key, value, "use a number of at least 0 and below 1");
    return value;
  }
  double norm_eps(const char* key, double otherwise) const {
    const double value = get(key, otherwise);
    require(value > 0 && value < 1, key, value, "use a number above 0 and below 1, such as 1e-6");
    return value;
  }
  double initializer_range() const {
    const double value = get("initializer_range", 0.02);
    require(value >= 0 && value <= 1, "initializer_range", value, "use a number of 0 to 1, such as 0.02");
    return value;
  }

  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const {
    throw Error(ErrorKind::kData, {what, file_.path, fix});
  }

 private:
  template <class Value>
  void require(bool holds, const char* key, Value value, const std::string& fix) const {
    if (!holds) refuse(fmt::format("'{}' is {}", key, value), fix);
  }

  const ModelConfig& file_;
};

}  // namespace tessera::models
