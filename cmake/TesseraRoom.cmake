# One target a room. PUBLIC_HEADERS are installed; any other header is private to the build. USES names the rooms that this
# one includes (base is always there); scripts/check_layers checks the includes against its own table.
function(tessera_room name)
  cmake_parse_arguments(PARSE_ARGV 1 ROOM "" "" "SOURCES;PUBLIC_HEADERS;USES;LIBRARIES")
  add_library(tessera_${name} OBJECT ${ROOM_SOURCES})
  target_include_directories(tessera_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(tessera_${name} PRIVATE ${TESSERA_WARNINGS})
  set_target_properties(tessera_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(NOT name STREQUAL "base")
    list(APPEND ROOM_USES base)
  endif()
  # Object libraries hand on flags and libraries, not objects; tessera_room_closure collects the objects.
  foreach(used IN LISTS ROOM_USES)
    target_link_libraries(tessera_${name} PUBLIC tessera_${used})
  endforeach()
  target_link_libraries(tessera_${name} PUBLIC ${ROOM_LIBRARIES})
  set_property(TARGET tessera_${name} PROPERTY TESSERA_USES ${ROOM_USES})
  set_property(GLOBAL APPEND PROPERTY TESSERA_ROOMS ${name})
  foreach(header IN LISTS ROOM_PUBLIC_HEADERS)
    set_property(GLOBAL APPEND PROPERTY TESSERA_PUBLIC_HEADERS tessera/${name}/${header})
  endforeach()
endfunction()

# The room and all rooms that it uses, directly or not.
function(tessera_room_closure result)
  set(open ${ARGN})
  set(closed)
  while(open)
    list(POP_FRONT open room)
    if(NOT room IN_LIST closed)
      list(APPEND closed ${room})
      get_target_property(uses tessera_${room} TESSERA_USES)
      list(APPEND open ${uses})
      list(REMOVE_ITEM open "")
      list(REMOVE_ITEM open "uses-NOTFOUND")
    endif()
  endwhile()
  set(${result} ${closed} PARENT_SCOPE)
endfunction()

# Links `target` with the objects of the named rooms and of all that they use.
function(tessera_link_rooms target)
  tessera_room_closure(rooms ${ARGN})
  foreach(room IN LISTS rooms)
    target_link_libraries(${target} PRIVATE tessera_${room})
  endforeach()
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  if("comm" IN_LIST rooms AND TESSERA_MPI_PLUGINS)
    add_dependencies(${target} ${TESSERA_MPI_PLUGINS})  # which it loads at run time
  endif()
endfunction()

# The executable <room>_test from tests/<room>/*_test.cpp (listed by the caller), one ctest entry for each GoogleTest case.
# It links only the objects of the room and of what the room uses.
function(tessera_room_test room)
  cmake_parse_arguments(PARSE_ARGV 1 TEST "" "" "SOURCES;USES;LIBRARIES")
  add_executable(${room}_test ${TEST_SOURCES})
  target_compile_options(${room}_test PRIVATE ${TESSERA_WARNINGS})
  tessera_link_rooms(${room}_test ${room} ${TEST_USES})
  target_link_libraries(${room}_test PRIVATE ${TEST_LIBRARIES} GTest::gtest_main GTest::gmock)
  set_target_properties(${room}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  gtest_discover_tests(${room}_test TEST_PREFIX "${room}." DISCOVERY_TIMEOUT 60 DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT 300 ENVIRONMENT "OMP_NUM_THREADS=1")
endfunction()
