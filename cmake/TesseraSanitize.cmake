# TESSERA_SANITIZE: `address` (AddressSanitizer, UndefinedBehaviorSanitizer, LeakSanitizer, and the counters that libFuzzer
# steers by: one build for `make fuzz` and `make sanitize`) or `thread` (ThreadSanitizer). LibTorch is not instrumented.
set(TESSERA_SANITIZE "" CACHE STRING "address, thread, or nothing; with clang")
if(NOT TESSERA_SANITIZE)
  return()
endif()
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "TESSERA_SANITIZE needs clang: run scripts/setup --fuzz and use the preset asan or tsan.")
endif()
# -Werror is for the compiler of a release. ccache needs precompiled headers without a time in them.
list(REMOVE_ITEM TESSERA_WARNINGS -Werror)
list(APPEND TESSERA_WARNINGS -Wno-unknown-warning-option)
add_compile_options(-fno-omit-frame-pointer "SHELL:-Xclang -fno-pch-timestamp")
# The loader chooses a function's version (target_clones) before a sanitizer has set itself up.
add_compile_definitions(TESSERA_ONE_CPU _GLIBCXX_ASSERTIONS)
if(TESSERA_SANITIZE STREQUAL "address")
  # vptr and function ask for what LibTorch's own objects do not carry.
  set(sanitizers -fsanitize=address,undefined -fno-sanitize=vptr,function)
  add_compile_options(${sanitizers} -fsanitize=fuzzer-no-link)
elseif(TESSERA_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
  add_compile_options(${sanitizers})
else()
  message(FATAL_ERROR "TESSERA_SANITIZE is '${TESSERA_SANITIZE}': use address or thread.")
endif()
add_link_options(${sanitizers})
