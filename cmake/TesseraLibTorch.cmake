# LibTorch from a pip wheel: TESSERA_TORCH names the folder `torch` of any installed 2.11 to 2.13 (CPU or CUDA). Without
# it CMAKE_PREFIX_PATH is searched, then the project's own .venv. A wheel of Tessera (SKBUILD) is for one environment of
# Python: without TESSERA_TORCH it takes the torch of that environment and no other.
include(cmake/TesseraTorchOfPython.cmake)

if(TESSERA_TORCH)
  set(TESSERA_TORCH_FOUND ${TESSERA_TORCH})
elseif(SKBUILD)
  tessera_torch_of_interpreter(TESSERA_TORCH_FOUND)
else()
  file(GLOB candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(candidates)
    list(GET candidates 0 TESSERA_TORCH_FOUND)
  endif()
endif()

include(cmake/TesseraTorchForCuda.cmake)
tessera_torch_for_cuda("${TESSERA_TORCH_FOUND}")
if(Torch_FOUND)
  set(TORCH_INSTALL_PREFIX ${TESSERA_TORCH_FOUND})
elseif(SKBUILD)  # a prefix of somebody else's may hold another torch
  find_package(Torch QUIET PATHS ${TESSERA_TORCH_FOUND}/share/cmake NO_DEFAULT_PATH)
else()
  list(APPEND CMAKE_PREFIX_PATH ${TESSERA_TORCH_FOUND}/share/cmake)
  find_package(Torch QUIET)
endif()
if(NOT Torch_FOUND)
  message(FATAL_ERROR "LibTorch was not found in '${TESSERA_TORCH_FOUND}'. "
    "Run scripts/setup, or point TESSERA_TORCH at an installed torch package.")
endif()
if(Torch_VERSION VERSION_LESS 2.11 OR Torch_VERSION VERSION_GREATER_EQUAL 2.14)
  message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${TORCH_INSTALL_PREFIX} is not supported: install torch 2.11 to "
    "2.13, or point TESSERA_TORCH at an installed one.")
endif()

# One name for rooms to link. `torch` itself drags in warnings-as-is headers, so it is a system include.
add_library(tessera_libtorch INTERFACE)
# Without OpenMP's flag at::parallel_for is a plain loop on one thread, and says nothing. The wheels bring the runtime
# library along: with another one beside it there would be two pools of threads.
# ThreadSanitizer cannot see how libgomp's threads wait for each other, so its builds have that plain loop.
if(NOT TESSERA_SANITIZE)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
get_filename_component(torch_lib_folder ${TORCH_LIBRARY} DIRECTORY)
file(GLOB torch_openmp ${torch_lib_folder}/libgomp*.so*)
if(TESSERA_SANITIZE)
  target_link_libraries(tessera_libtorch INTERFACE ${TORCH_LIBRARIES})
elseif(torch_openmp)
  target_compile_options(tessera_libtorch INTERFACE ${OpenMP_CXX_FLAGS})
  target_link_libraries(tessera_libtorch INTERFACE ${TORCH_LIBRARIES} ${torch_openmp})
else()
  target_link_libraries(tessera_libtorch INTERFACE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)
endif()
target_include_directories(tessera_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
# Before everything else: libtorch_cpu.so of 2.11 exports a std::filesystem of its own, of an older layout. What is asked
# for by a program or a library is taken from the first that it names.
set(TESSERA_STDCXX_FIRST "LINKER:--push-state,--no-as-needed,-lstdc++,--pop-state")
target_link_options(tessera_libtorch INTERFACE ${TESSERA_STDCXX_FIRST})
# Those of torch's own CMake files, which are not asked where it is for CUDA.
target_compile_definitions(tessera_libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
# The wheel carries fmt's headers of its own version, found before others, without the library: that is one source, compiled
# once here and not in every file that includes them.
add_library(tessera_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_of_torch.cpp)
set_target_properties(tessera_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(tessera_fmt SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
target_link_libraries(tessera_libtorch INTERFACE tessera_fmt)
