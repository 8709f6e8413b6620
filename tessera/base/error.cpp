#include "tessera/base/error.h"

#include <fmt/format.h>

#include <cstring>

namespace tessera {
namespace {

constexpr size_t kMostText = 3000;  // bytes of each part

// What was found is quoted: control characters, which a terminal obeys, by their numbers, and of very much the
// beginning.
std::string presentable(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool continues = (byte & 0xC0) == 0x80;  // a character of UTF-8, which is not cut in two
    if (result.size() >= kMostText && !continues) return result + fmt::format("… ({} more bytes)", text.size() - i);
    const bool is_control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    if (is_control) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += text[i];
    }
  }
  return result;
}

const ErrorReport& made_presentable(ErrorReport& report) {
  for (std::string* const part : {&report.what, &report.where, &report.fix}) *part = presentable(*part);
  return report;
}

std::string as_text(const ErrorReport& report) {
  std::string text = report.what;
  if (!report.where.empty()) text += "\n  where: " + report.where;
  if (!report.fix.empty()) text += "\n  fix:   " + report.fix;
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, ErrorReport report)
    : std::runtime_error(as_text(made_presentable(report))), kind_(kind), report_(std::move(report)) {}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
    case ErrorKind::kConfig:
    case ErrorKind::kData:
    case ErrorKind::kMachine:
      return 2;
    case ErrorKind::kPeer:
    case ErrorKind::kInternal:
      return 1;
  }
  return 1;
}

std::string errno_text(int error_number) {
  return fmt::format("{} (errno {})", std::strerror(error_number), error_number);
}

void invariant_failed(const char* condition, const char* file, int line) {
  throw Error(ErrorKind::kInternal,
              {fmt::format("a bug in Tessera: '{}' is false", condition), fmt::format("{}:{}", file, line),
               "please report it, with the command and the configuration that led to it"});
}

}  // namespace tessera
