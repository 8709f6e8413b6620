#include "tessera/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "tessera/base/env.h"
#include "tessera/base/status_line.h"

namespace tessera {
namespace {

spdlog::level::level_enum level_of(int rank) {
  if (const auto wanted = env_text("TESSERA_LOG_LEVEL")) return spdlog::level::from_str(*wanted);
  return rank == 0 ? spdlog::level::info : spdlog::level::warn;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_logger_mt("tessera");
    made->set_pattern("%l: %v");
    made->set_level(level_of(0));
    made->flush_on(spdlog::level::debug);
    return made;
  }();
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
