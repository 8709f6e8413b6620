# `cmake --install`: lib/libtessera.so and the plugins for MPI, lib/tessera/ with Arrow, bin/tessera, the public headers
# and what find_package(Tessera) needs. The folder may be moved: only LibTorch stays outside. It is looked for in `torch`
# in the installed folder (a link to any installed torch package will do), then where it was when Tessera was built.
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY TESSERA_ROOMS)
set(objects)
foreach(room IN LISTS rooms)
  list(APPEND objects $<TARGET_OBJECTS:tessera_${room}>)
endforeach()
add_library(tessera_shared SHARED ${objects} $<TARGET_OBJECTS:tessera_commands>)
set_target_properties(tessera_shared PROPERTIES OUTPUT_NAME tessera VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LINKER_LANGUAGE CXX
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
target_link_libraries(tessera_shared PRIVATE tessera_libtorch tessera_arrow spdlog::spdlog fmt::fmt
  nlohmann_json::nlohmann_json ${TESSERA_YAML_CPP} ICU::uc ICU::i18n Threads::Threads
  tessera_lib_sentencepiece tessera_lib_sodium tessera_lib_uring tessera_lib_xxhash)

# Written out, because LibTorch may lie inside this project's own .venv, which INSTALL_RPATH_USE_LINK_PATH would leave out.
get_filename_component(torch_folder ${TORCH_LIBRARY} DIRECTORY)
set(prefix /prefix)  # any: only the way from one folder to another counts
foreach(pair tessera_shared:${CMAKE_INSTALL_LIBDIR} tessera_cli:${CMAKE_INSTALL_BINDIR})
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 target)
  list(GET pair 1 folder)
  set(rpath)
  foreach(place ${CMAKE_INSTALL_LIBDIR} ${CMAKE_INSTALL_LIBDIR}/tessera torch/lib)
    file(RELATIVE_PATH way ${prefix}/${folder} ${prefix}/${place})
    list(APPEND rpath $ORIGIN/${way})
  endforeach()
  if(target STREQUAL "tessera_cli")  # as a wheel has it, in site-packages/tessera/bin
    list(APPEND rpath $ORIGIN/.. $ORIGIN/../../torch/lib)
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath};${torch_folder}")
endforeach()
install(TARGETS tessera_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${arrow_library} ${parquet_library} DESTINATION ${CMAKE_INSTALL_LIBDIR}/tessera)
if(TESSERA_MPI_PLUGINS)
  install(TARGETS ${TESSERA_MPI_PLUGINS} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(TARGETS tessera_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

get_property(headers GLOBAL PROPERTY TESSERA_PUBLIC_HEADERS)
foreach(header IN LISTS headers ITEMS tessera/tessera.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TesseraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/TesseraConfig.cmake INSTALL_DESTINATION ${config_folder}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TesseraConfig.cmake ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/TesseraTorchForCuda.cmake DESTINATION ${config_folder})
