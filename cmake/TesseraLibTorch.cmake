# LibTorch from a pip wheel: TESSERA_TORCH names the folder `torch` of any installed 2.11 to 2.13 (CPU or CUDA); without it
# CMAKE_PREFIX_PATH is searched, then the project's own .venv.
set(TESSERA_TORCH "" CACHE PATH "The folder of an installed torch package, e.g. …/site-packages/torch")

if(NOT TESSERA_TORCH)
  file(GLOB candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(candidates)
    list(GET candidates 0 TESSERA_TORCH_FOUND)
  endif()
else()
  set(TESSERA_TORCH_FOUND ${TESSERA_TORCH})
endif()
if(TESSERA_TORCH_FOUND)
  list(APPEND CMAKE_PREFIX_PATH ${TESSERA_TORCH_FOUND}/share/cmake)
endif()

find_package(Torch QUIET)
if(NOT Torch_FOUND)
  message(FATAL_ERROR "LibTorch was not found. Run scripts/setup, or point TESSERA_TORCH at an installed torch package.")
endif()
if(Torch_VERSION VERSION_LESS 2.11 OR Torch_VERSION VERSION_GREATER_EQUAL 2.14)
  message(FATAL_ERROR "LibTorch ${Torch_VERSION} is not supported: Tessera builds against 2.11 to 2.13.")
endif()

# One name for rooms to link. `torch` itself drags in warnings-as-is headers, so it is a system include.
add_library(tessera_libtorch INTERFACE)
# Without OpenMP's flag at::parallel_for is a plain loop on one thread, and says nothing. The wheels bring the runtime
# library along: with another one beside it there would be two pools of threads.
find_package(OpenMP REQUIRED COMPONENTS CXX)
get_filename_component(torch_lib_folder ${TORCH_LIBRARY} DIRECTORY)
file(GLOB torch_openmp ${torch_lib_folder}/libgomp*.so*)
if(torch_openmp)
  target_compile_options(tessera_libtorch INTERFACE ${OpenMP_CXX_FLAGS})
  target_link_libraries(tessera_libtorch INTERFACE ${TORCH_LIBRARIES} ${torch_openmp})
else()
  target_link_libraries(tessera_libtorch INTERFACE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)
endif()
target_include_directories(tessera_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
# The wheel carries fmt's headers of its own version, without its library: where they are found first, fmt is header-only.
target_compile_definitions(tessera_libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO FMT_HEADER_ONLY)
