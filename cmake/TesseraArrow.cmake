# Arrow and Parquet C++ from the pyarrow wheel, which carries the libraries and their headers; Debian has no Arrow.
# TESSERA_PYARROW names the folder of an installed pyarrow; without it the project's own .venv is searched.
set(TESSERA_PYARROW "" CACHE PATH "The folder of an installed pyarrow package, e.g. …/site-packages/pyarrow")

set(pyarrow_folder ${TESSERA_PYARROW})
if(NOT pyarrow_folder)
  file(GLOB candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow)
  if(candidates)
    list(GET candidates 0 pyarrow_folder)
  endif()
endif()
file(GLOB arrow_library ${pyarrow_folder}/libarrow.so.*)
file(GLOB parquet_library ${pyarrow_folder}/libparquet.so.*)
if(NOT arrow_library OR NOT parquet_library)
  message(FATAL_ERROR "Arrow was not found. Run scripts/setup, or point TESSERA_PYARROW at an installed pyarrow package.")
endif()

add_library(tessera_arrow INTERFACE)
target_link_libraries(tessera_arrow INTERFACE ${parquet_library} ${arrow_library})
target_include_directories(tessera_arrow SYSTEM INTERFACE ${pyarrow_folder}/include)
