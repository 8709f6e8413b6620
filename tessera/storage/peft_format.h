// How the package PEFT lays out a folder with an adapter: a configuration, and the adapter's weights by the names of
// the model's parameters behind a prefix.
#pragma once

namespace tessera::storage {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
inline constexpr const char* kAdapterPrefix = "base_model.model.";

}  // namespace tessera::storage
