// Log lines for people, on standard error: "[rank 1] warning: …". Rank 0 logs info and above, other ranks warnings and
// above, unless TESSERA_LOG_LEVEL (debug, info, warning, error, off) says otherwise. Thread-safe.
//
//   log_info("loaded {} tensors from {}", count, path);
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace tessera {

// Call once the rank is known; before that lines carry no rank and rank 0's level applies.
void set_log_rank(int rank, int world_size);

void write_debug(std::string_view text);
void write_info(std::string_view text);
void write_warning(std::string_view text);
void write_error(std::string_view text);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  write_debug(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  write_info(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  write_warning(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  write_error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tessera
