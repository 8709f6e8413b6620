// The one exception type that leaves Tessera for anything a user, a peer or the machine did.
//
//   throw Error(ErrorKind::kConfig, {"'zero_optimization.stage' is 4", "ds.json:12:14", "use 0, 1, 2 or 3"});
//
// prints   'zero_optimization.stage' is 4
//            where: ds.json:12:14
//            fix:   use 0, 1, 2 or 3
//
// Our own bugs are TESSERA_INVARIANT: a condition that no input may make false. docs/errors.md has the whole rule.
#pragma once

#include <stdexcept>
#include <string>

namespace tessera {

// What failed, which decides the exit code of the command line (exit_code below).
enum class ErrorKind {
  kUsage,     // the command line or a call of the API is wrong
  kConfig,    // a configuration or run file is wrong
  kData,      // an input file (text, weights, vocabulary, checkpoint) is missing, damaged or does not fit
  kMachine,   // the machine refused: disk full, no memory, port taken
  kPeer,      // another rank is gone, late, or doing something else
  kInternal,  // TESSERA_INVARIANT failed
};

// A part beyond 3000 bytes is cut there, and says so; a control character is written as its number.
struct ErrorReport {
  std::string what;   // one sentence: what was found
  std::string where;  // file:line:column, a path, or a rank and a unit; may be empty
  std::string fix;    // what to do about it; may be empty
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, ErrorReport report);

  ErrorKind kind() const { return kind_; }
  const ErrorReport& report() const { return report_; }

 private:
  ErrorKind kind_;
  ErrorReport report_;
};

// 2 for what the user can fix before running again (usage, config, data, machine), 1 for a lost peer and for our bugs.
int exit_code(ErrorKind kind);

// "No space left on device (errno 28)".
std::string errno_text(int error_number);

[[noreturn]] void invariant_failed(const char* condition, const char* file, int line);

}  // namespace tessera

#define TESSERA_INVARIANT(condition) \
  ((condition) ? static_cast<void>(0) : ::tessera::invariant_failed(#condition, __FILE__, __LINE__))
