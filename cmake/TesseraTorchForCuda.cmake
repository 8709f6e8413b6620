# LibTorch for CUDA, named directly. torch's own CMake files ask for the CUDA toolkit, and for one of the same release;
# nothing here needs it, so it makes no difference which there is: none, another one, or half of one.
#
# Sets what find_package(Torch) would, where `folder` is an installed torch for CUDA; otherwise nothing.
macro(tessera_torch_for_cuda folder)
  set(tessera_torch_cuda "")
  if(EXISTS ${folder}/version.py)
    file(STRINGS ${folder}/version.py tessera_torch_cuda REGEX "^cuda.*= *'")
  endif()
  if(tessera_torch_cuda)
    file(STRINGS ${folder}/version.py Torch_VERSION REGEX "^__version__")
    string(REGEX MATCH "[0-9]+[.][0-9]+[.][0-9]+" Torch_VERSION "${Torch_VERSION}")
    set(TORCH_INCLUDE_DIRS ${folder}/include ${folder}/include/torch/csrc/api/include)
    set(TORCH_LIBRARY ${folder}/lib/libtorch.so)
    set(TORCH_LIBRARIES ${TORCH_LIBRARY} ${folder}/lib/libtorch_cpu.so ${folder}/lib/libc10.so)
    # No source names what it holds, the operators for CUDA: a linker would leave it out.
    list(APPEND TORCH_LIBRARIES -Wl,--push-state,--no-as-needed,${folder}/lib/libtorch_cuda.so,--pop-state)
    set(Torch_DIR ${folder}/share/cmake/Torch)
    set(Torch_FOUND TRUE)
  endif()
endmacro()
