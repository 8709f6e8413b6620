// LibTorch's dtypes for those of the configuration, and their names, as the safetensors format writes them ("F32",
// "BF16", …) and as people do ("fp32", "bf16").
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace tessera::config {
enum class Dtype;
}

namespace tessera::storage {

at::ScalarType scalar_type(config::Dtype dtype);

// Nothing for a name that the format, or LibTorch, does not have.
std::optional<at::ScalarType> dtype_of_safetensors(std::string_view name);
std::string safetensors_name(at::ScalarType dtype);

std::string short_name(at::ScalarType dtype);

}  // namespace tessera::storage
