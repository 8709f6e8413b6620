// What the stand-in for NCCL (nccl_stand_in.cpp) knows of values: their dtypes, and sums of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tessera::test::stand_in {

// ncclDataType_t
enum DataType : int { kInt8 = 0, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9 };

inline size_t bytes_of(DataType dtype) {
  switch (dtype) {
    case kInt8:
      return 1;
    case kFloat32:
      return 4;
    case kFloat64:
      return 8;
    default:
      return 2;
  }
}

struct Bfloat16 {
  uint16_t bits = 0;
  Bfloat16() = default;
  explicit Bfloat16(float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    bits = static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  explicit operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
  }
};

// Of bytes that are `count` values: out = sum of scale * parts, the last first. Each step is rounded to the dtype.
template <class Value, class Wide>
void sum_as(const std::vector<const char*>& parts, double scale, size_t count, char* out) {
  for (size_t i = 0; i < count; ++i) {
    Value sum{};
    for (size_t part = parts.size(); part-- > 0;) {
      Value value;
      std::memcpy(&value, parts[part] + i * sizeof(Value), sizeof(Value));
      const Value scaled(static_cast<Wide>(value) * static_cast<Wide>(scale));
      sum = part + 1 == parts.size() ? scaled : Value(static_cast<Wide>(sum) + static_cast<Wide>(scaled));
    }
    std::memcpy(out + i * sizeof(Value), &sum, sizeof(Value));
  }
}

inline void sum_values(DataType dtype, const std::vector<const char*>& parts, double scale, size_t count, char* out) {
  switch (dtype) {
    case kFloat16:
      return sum_as<_Float16, float>(parts, scale, count, out);
    case kBfloat16:
      return sum_as<Bfloat16, float>(parts, scale, count, out);
    case kFloat64:
      return sum_as<double, double>(parts, scale, count, out);
    default:
      return sum_as<float, float>(parts, scale, count, out);
  }
}

inline double value_of(const void* scalar, DataType dtype) {
  float value = 0;
  if (dtype == kFloat64) return *static_cast<const double*>(scalar);
  if (dtype == kFloat32) value = *static_cast<const float*>(scalar);
  if (dtype == kFloat16) value = static_cast<float>(*static_cast<const _Float16*>(scalar));
  if (dtype == kBfloat16) value = static_cast<float>(*static_cast<const Bfloat16*>(scalar));
  return value;
}

}  // namespace tessera::test::stand_in
