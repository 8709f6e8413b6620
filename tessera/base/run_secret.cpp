#include "tessera/base/run_secret.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/trimmed.h"

namespace tessera {
namespace {

constexpr size_t kShortest = 16;
constexpr uint64_t kLargestFile = 4096;
constexpr const char* kBlanks = " \t\r\n";

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& fix) {
  throw Error(ErrorKind::kUsage, {what, where, fix});
}

std::string secret_of_file(const std::string& path) {
  const std::string where = "TESSERA_SECRET_FILE: " + path;
  const std::string text = read_input_file(path, ErrorKind::kUsage, kLargestFile);
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) refuse("the file cannot be read: " + errno_text(errno), where, "");
  if ((file.st_uid != geteuid() && file.st_uid != 0) || (file.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    refuse("the run's secret is in a file that others may read or write", where, "chown it to yourself and chmod 600");
  }
  return std::string(trimmed(text, kBlanks));
}

}  // namespace

std::string run_secret() {
  const auto given = env_text("TESSERA_SECRET");
  const auto path = env_text("TESSERA_SECRET_FILE");
  if (!given && !path) return "";
  if (given && path) {
    refuse("TESSERA_SECRET and TESSERA_SECRET_FILE are both set", "the environment", "unset one of them");
  }
  std::string secret = given ? *given : secret_of_file(*path);
  if (secret.size() < kShortest) {
    refuse(fmt::format("the run's secret has {} characters", secret.size()),
           given ? "TESSERA_SECRET" : "TESSERA_SECRET_FILE: " + *path,
           fmt::format("use {} or more, for example the output of: openssl rand -hex 32", kShortest));
  }
  return secret;
}

std::string make_run_secret() {
  std::array<uint8_t, 32> bytes;
  if (getentropy(bytes.data(), bytes.size()) != 0) {
    throw Error(ErrorKind::kMachine, {"the kernel gives no random bytes: " + errno_text(errno), "getentropy", ""});
  }
  std::string digits;
  for (const uint8_t byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace tessera
