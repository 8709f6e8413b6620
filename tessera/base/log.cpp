#include "tessera/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <optional>

#include "tessera/base/env.h"
#include "tessera/base/status_line.h"

namespace tessera {
namespace {

constexpr auto kLevelVariable = "TESSERA_LOG_LEVEL";

// What the environment asks for, if that is a level.
std::optional<spdlog::level::level_enum> wanted_level() {
  const auto name = env_text(kLevelVariable);
  if (!name) return std::nullopt;
  const spdlog::level::level_enum level = spdlog::level::from_str(*name);
  const bool is_unknown = level == spdlog::level::off && *name != "off";  // what from_str makes of it
  return is_unknown ? std::nullopt : std::optional(level);
}

spdlog::level::level_enum level_of(int rank) {
  return wanted_level().value_or(rank == 0 ? spdlog::level::info : spdlog::level::warn);
}

// Never destroyed: what ends with the process may still have something to say.
spdlog::logger& logger() {
  static const auto& instance = *new std::shared_ptr<spdlog::logger>([] {
    auto made = spdlog::stderr_logger_mt("tessera");
    made->set_pattern("%l: %v");
    made->set_level(level_of(0));
    made->flush_on(spdlog::level::debug);
    if (env_text(kLevelVariable) && !wanted_level()) {
      made->warn("{} is '{:.100}', which is no level: use debug, info, warning, error or off", kLevelVariable,
                 *env_text(kLevelVariable));
    }
    return made;
  }());
  return *instance;
}

void write(spdlog::level::level_enum level, std::string_view text) {
  if (!logger().should_log(level)) return;
  const StatusPause pause;
  logger().log(level, "{}", text);
}

}  // namespace

void set_log_rank(int rank, int world_size) {
  logger().set_level(level_of(rank));
  if (world_size > 1) logger().set_pattern(fmt::format("[rank {}] %l: %v", rank));
}

void write_debug(std::string_view text) { write(spdlog::level::debug, text); }
void write_info(std::string_view text) { write(spdlog::level::info, text); }
void write_warning(std::string_view text) { write(spdlog::level::warn, text); }
void write_error(std::string_view text) { write(spdlog::level::err, text); }

}  // namespace tessera
