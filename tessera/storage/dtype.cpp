#include "tessera/storage/dtype.h"

#include <c10/core/ScalarTypeToTypeMeta.h>

#include "tessera/base/error.h"
#include "tessera/config/ds_config.h"

namespace tessera::storage {
namespace {

struct DtypeNames {
  at::ScalarType dtype;
  const char* safetensors;
  const char* shorter;
};

constexpr DtypeNames kDtypes[] = {
    {at::kFloat, "F32", "fp32"},
    {at::kBFloat16, "BF16", "bf16"},
    {at::kHalf, "F16", "fp16"},
    {at::kDouble, "F64", "fp64"},
    {at::kLong, "I64", "int64"},
    {at::kInt, "I32", "int32"},
    {at::kShort, "I16", "int16"},
    {at::kChar, "I8", "int8"},
    {at::kByte, "U8", "uint8"},
    {at::kBool, "BOOL", "bool"},
    {at::kUInt16, "U16", "uint16"},
    {at::kUInt32, "U32", "uint32"},
    {at::kUInt64, "U64", "uint64"},
    {at::kComplexFloat, "C64", "complex64"},
    {at::kFloat8_e4m3fn, "F8_E4M3", "fp8_e4m3"},
    {at::kFloat8_e5m2, "F8_E5M2", "fp8_e5m2"},
};

const DtypeNames& names_of(at::ScalarType dtype) {
  for (const DtypeNames& names : kDtypes) {
    if (names.dtype == dtype) return names;
  }
  throw Error(ErrorKind::kData, {std::string("tensors of dtype ") + c10::toString(dtype) + " cannot be stored", "",
                                 "convert the tensor to a floating or integer dtype"});
}

}  // namespace

at::ScalarType scalar_type(config::Dtype dtype) {
  switch (dtype) {
    case config::Dtype::kFp32:
      return at::kFloat;
    case config::Dtype::kBf16:
      return at::kBFloat16;
    case config::Dtype::kFp16:
      return at::kHalf;
  }
  return at::kFloat;
}

std::optional<at::ScalarType> dtype_of_safetensors(std::string_view name) {
  for (const DtypeNames& names : kDtypes) {
    if (name == names.safetensors) return names.dtype;
  }
  return std::nullopt;
}

std::string safetensors_name(at::ScalarType dtype) { return names_of(dtype).safetensors; }
std::string short_name(at::ScalarType dtype) { return names_of(dtype).shorter; }

}  // namespace tessera::storage
