#include "tessera/base/error.h"

#include <fmt/format.h>

#include <cstring>

namespace tessera {
namespace {

std::string as_text(const ErrorReport& report) {
  std::string text = report.what;
  if (!report.where.empty()) text += "\n  where: " + report.where;
  if (!report.fix.empty()) text += "\n  fix:   " + report.fix;
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, ErrorReport report)
    : std::runtime_error(as_text(report)), kind_(kind), report_(std::move(report)) {}

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
