# Precompiled headers, because LibTorch's take most of the time of a build: `tensor` for rooms that handle tensors, `module`
# for what also makes modules and graphs (three times as large, so slower to load, but torch/nn/module.h alone takes 9 s to
# read). Sources include what they use all the same: with TESSERA_PRECOMPILED_HEADERS=OFF nothing is precompiled.
option(TESSERA_PRECOMPILED_HEADERS "Precompile LibTorch's headers" ON)
set(TESSERA_MODULE_ROOMS nn models plan engine train)  # the others take `tensor`

# `which`: tensor or module; the first for a target holds. One compilation for all targets, so all are compiled as
# position-independent code.
function(tessera_precompile target which)
  get_target_property(has_one ${target} PRECOMPILE_HEADERS_REUSE_FROM)
  if(NOT TESSERA_PRECOMPILED_HEADERS OR has_one)
    return()
  endif()
  set(precompiled tessera_precompiled_${which})
  if(NOT TARGET ${precompiled})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled/${which}.cpp CONTENT "// Only its precompiled header counts.\n")
    add_library(${precompiled} OBJECT ${PROJECT_BINARY_DIR}/precompiled/${which}.cpp)
    target_link_libraries(${precompiled} PRIVATE tessera_base tessera_libtorch nlohmann_json::nlohmann_json)
    target_compile_options(${precompiled} PRIVATE ${TESSERA_WARNINGS} -fPIC)
    set(headers <ATen/core/Tensor.h> <algorithm> <filesystem> <fmt/format.h> <fmt/ranges.h> <functional> <map> <memory>
      <nlohmann/json.hpp> <optional> <string> <unordered_map> <vector>)
    if(which STREQUAL "module")
      list(APPEND headers <torch/nn/module.h> <torch/nn/pimpl.h> <torch/csrc/autograd/variable.h>)
    endif()
    target_precompile_headers(${precompiled} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${precompiled})
  target_compile_options(${target} PRIVATE -fPIC)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms inside std::string, which it takes for ours where it comes from a precompiled header.
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
endfunction()
