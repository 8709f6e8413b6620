// TESSERA_EVERY_CPU before a function: the compiler makes a version of it for each instruction set, and the loader
// picks one. TESSERA_X86: its instructions may be named.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define TESSERA_X86
#endif
#if defined(TESSERA_X86) && !defined(TESSERA_ONE_CPU)  // cmake/TesseraSanitize.cmake
#define TESSERA_EVERY_CPU __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define TESSERA_EVERY_CPU
#endif
