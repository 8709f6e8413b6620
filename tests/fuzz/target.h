// What a fuzz target is: something that reads bytes from outside, given bytes of any kind.
//
//   TESSERA_FUZZ_TARGET(csv) {             // the input is `bytes`
//     const TemporaryFolder folder;
//     data::read_texts(write(folder, "rows.csv", bytes), "text");
//   }
//
// It may return, or throw an Error that is not of kInternal and says where; anything else is a finding. So is memory
// beyond kBytesAnInputByte (a target may say another) for each byte of the input and kBytesOfMachinery together
// (counted by the sanitizer's allocator), and so are what the sanitizers find, and a hang. Built with
// TESSERA_SANITIZE=address each target is a libFuzzer program of its own; else all are in one test, fuzz_test, that
// gives each the files of its corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace tessera::fuzz {

using test::TemporaryFolder;

inline constexpr size_t kBytesAnInputByte = 10;
inline constexpr size_t kBytesOfMachinery = 8 << 20;  // tables of keys, readers' buffers, a message

struct Target {
  const char* name;  // corpus/<name>
  void (*run)(std::string_view bytes);
  size_t bytes_an_input_byte = kBytesAnInputByte;
};

std::vector<Target>& targets();

// False, and why on standard error, where the target did what none may do.
bool holds(const Target& target, std::string_view bytes);

// The path of a file with these bytes.
std::string write(const TemporaryFolder& folder, const std::string& name, std::string_view bytes);

// An input that stands for several files: what lies between the lines "====", `count` parts, the last ones empty where
// there are fewer.
std::vector<std::string> parts_of(std::string_view bytes, size_t count);

}  // namespace tessera::fuzz

// After the name, for a compressed format: how much memory a byte of it may take.
#define TESSERA_FUZZ_TARGET(target, ...)                                                                 \
  static void fuzz_##target(std::string_view bytes);                                                     \
  [[maybe_unused]] static const bool target##_is_one =                                                   \
      (::tessera::fuzz::targets().push_back({#target, fuzz_##target __VA_OPT__(, ) __VA_ARGS__}), true); \
  static void fuzz_##target(std::string_view bytes)
