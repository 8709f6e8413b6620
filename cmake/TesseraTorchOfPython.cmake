# Which torch a Python interpreter has.
set(TESSERA_TORCH "" CACHE PATH "The folder of an installed torch package, e.g. …/site-packages/torch")

# Asks the interpreter that the wheel is for. pip builds in an environment of its own, which lies on PYTHONPATH and
# hides the real one: without that variable the interpreter sees the real one again.
function(tessera_torch_of_interpreter result)
  find_package(Python 3.9 REQUIRED COMPONENTS Interpreter)
  foreach(environment "" --unset=PYTHONPATH)
    execute_process(COMMAND ${CMAKE_COMMAND} -E env ${environment} --unset=PYTHONNOUSERSITE ${Python_EXECUTABLE} -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
      OUTPUT_VARIABLE folder ERROR_QUIET)
    if(folder)
      break()
    endif()
  endforeach()
  if(NOT folder)
    message(FATAL_ERROR "torch is not installed for ${Python_EXECUTABLE}. Tessera builds on the torch that is there: "
      "install torch 2.11 to 2.13 first (CPU or CUDA), or set TESSERA_TORCH to the folder of an installed one.")
  endif()
  set(${result} ${folder} PARENT_SCOPE)
endfunction()

# "2.13": what the engine is compiled for.
function(tessera_torch_release folder result)
  file(STRINGS ${folder}/version.py version REGEX "^__version__")
  string(REGEX MATCH "[0-9]+[.][0-9]+" release "${version}")
  set(${result} ${release} PARENT_SCOPE)
endfunction()
