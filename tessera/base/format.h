// Quantities for people: "1.75 GB", "3 min 20 s", "12,480", "2 samples".
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera {

std::string format_bytes(uint64_t bytes);                      // decimal units: 1 kB = 1000 bytes
std::string format_duration(std::chrono::duration<double> d);  // "0.42 s", "12 s", "3 min 20 s", "2 h 05 min"
std::string format_count(int64_t count);                       // thousands separated by commas

// "1 sample", "4,358 samples". `plural`, where an s does not make it: count_of(2, "process", "processes").
std::string count_of(int64_t count, const std::string& noun, const std::string& plural = "");

}  // namespace tessera
