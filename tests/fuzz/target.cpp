#include "tests/fuzz/target.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tessera/base/error.h"

#ifdef TESSERA_LIBFUZZER
#include <sanitizer/allocator_interface.h>
#endif

namespace tessera::fuzz {
namespace {

// Bytes that are allocated, by all threads, since the target began.
std::atomic<int64_t> allocated = 0, peak = 0;

#ifdef TESSERA_LIBFUZZER
void on_malloc(const volatile void*, size_t bytes) {
  const int64_t now = allocated.fetch_add(static_cast<int64_t>(bytes)) + static_cast<int64_t>(bytes);
  int64_t before = peak.load();
  while (now > before && !peak.compare_exchange_weak(before, now)) {
  }
}

void on_free(const volatile void* pointer) {
  if (pointer == nullptr) return;
  allocated.fetch_sub(static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(pointer))));
}
#endif

bool is_error_of_the_input(const Error& error) {
  if (error.kind() == ErrorKind::kInternal || error.report().what.empty()) return false;
  return std::string_view(error.what()).size() < 5000;  // a message quotes a name, not the file
}

bool says(const Target& target, const std::string& what) {
  std::fprintf(stderr, "fuzz target %s: %s\n", target.name, what.c_str());
  return false;
}

}  // namespace

std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

bool holds(const Target& target, std::string_view bytes) {
  allocated = 0;
  peak = 0;
  try {
    target.run(bytes);
  } catch (const Error& error) {
    if (!is_error_of_the_input(error)) return says(target, std::string("no error for a user: ") + error.what());
  } catch (const std::exception& error) {
    return says(target, std::string("an exception of a library: ") + error.what());
  }
  const auto most = static_cast<int64_t>(target.bytes_an_input_byte * bytes.size() + kBytesOfMachinery);
  if (peak <= most) return true;
  return says(target, std::to_string(peak) + " bytes of memory for an input of " + std::to_string(bytes.size()));
}

std::string write(const TemporaryFolder& folder, const std::string& name, std::string_view bytes) {
  const std::filesystem::path path = folder.path() / name;
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path.string();
}

std::vector<std::string> parts_of(std::string_view bytes, size_t count) {
  constexpr std::string_view kBetween = "\n====\n";
  std::vector<std::string> parts(count);
  for (size_t i = 0; i < count && !bytes.empty(); ++i) {
    const size_t end = i + 1 < count ? bytes.find(kBetween) : std::string_view::npos;
    parts[i] = bytes.substr(0, end);
    bytes = end == std::string_view::npos ? "" : bytes.substr(end + kBetween.size());
  }
  return parts;
}

}  // namespace tessera::fuzz

#ifdef TESSERA_LIBFUZZER
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("TESSERA_LOG_LEVEL", "error", /*overwrite=*/0);
  __sanitizer_install_malloc_and_free_hooks(tessera::fuzz::on_malloc, tessera::fuzz::on_free);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (!tessera::fuzz::holds(tessera::fuzz::targets().front(), bytes)) std::abort();
  return 0;
}
#endif
