# A wheel takes the engine out of the repository's own build tree, where there is one and it is for the same Python and the
# same release of torch: nothing is compiled twice. Sets TESSERA_FROM_BUILT_TREE.
set(TESSERA_BUILT_TREE ${PROJECT_SOURCE_DIR}/build/release CACHE PATH "A build tree from which a wheel may take the engine")
include(cmake/TesseraTorchOfPython.cmake)

set(TESSERA_FROM_BUILT_TREE FALSE)
include(${TESSERA_BUILT_TREE}/python/built_for.cmake OPTIONAL)  # written by python/CMakeLists.txt
if(TESSERA_BUILT_SOABI)
  find_package(Python 3.9 REQUIRED COMPONENTS Interpreter Development.Module)
  set(folder ${TESSERA_TORCH})
  if(NOT folder)
    tessera_torch_of_interpreter(folder)
  endif()
  tessera_torch_release(${folder} release)
  if(TESSERA_BUILT_SOABI STREQUAL Python_SOABI AND TESSERA_BUILT_TORCH STREQUAL release)
    set(TESSERA_FROM_BUILT_TREE TRUE)
    message(STATUS "The engine comes from ${TESSERA_BUILT_TREE}")
    foreach(part tessera_python tessera_cli)
      add_custom_target(${part} COMMAND ${CMAKE_COMMAND} --build ${TESSERA_BUILT_TREE} --target ${part} USES_TERMINAL)
    endforeach()
    add_dependencies(tessera_cli tessera_python)  # one after the other
    install(CODE "execute_process(COMMAND ${CMAKE_COMMAND} --install ${TESSERA_BUILT_TREE} --component tessera_python
      --prefix \${CMAKE_INSTALL_PREFIX} COMMAND_ERROR_IS_FATAL ANY)")
  endif()
endif()
