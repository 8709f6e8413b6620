// TensorBoard's event files: records of TFRecord's form, each a protocol buffer (tensorflow/core/util/event.proto).
//
//   record   length (8 bytes), shifted crc32c of it (4), the event, shifted crc32c of the event (4); little-endian
//   event    1: wall_time (double, seconds), 2: step (varint), 3: file_version (text, the first record's),
//            5: summary { 1: value { 1: tag (text), 2: simple_value (float) } },
//            7: session_log { 1: status (START = 1) }
//
// A START at a step makes readers forget what earlier files of the folder have of that step and later ones.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <memory>

#include "tessera/base/env.h"
#include "tessera/monitor/patient_file.h"
#include "tessera/monitor/scalar_log.h"

namespace tessera::monitor {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little);

// Castagnoli's polynomial, reversed.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1U) ^ ((rest & 1U) != 0 ? 0x82F63B78U : 0U);
    table[byte] = rest;
  }
  return table;
}();

uint32_t shifted_crc(const std::string& bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) crc = kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFFU] ^ (crc >> 8U);
  return std::rotr(~crc, 15) + 0xA282EAD8U;
}

template <class Number>
std::string bytes_of(Number number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7U) bytes += static_cast<char>((number & 0x7FU) | 0x80U);
  return bytes + static_cast<char>(number);
}

enum class Wire { kVarint = 0, kDouble = 1, kBytes = 2, kFloat = 5 };

std::string field(uint64_t number, Wire wire, const std::string& bytes) {
  const std::string key = varint(number << 3U | static_cast<uint64_t>(wire));
  return wire == Wire::kBytes ? key + varint(bytes.size()) + bytes : key + bytes;
}

std::string record_of(const std::string& event) {
  const std::string length = bytes_of<uint64_t>(event.size());
  return length + bytes_of(shifted_crc(length)) + event + bytes_of(shifted_crc(event));
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string event_at(int64_t step, const std::string& what) {
  return field(1, Wire::kDouble, bytes_of(now())) + field(2, Wire::kVarint, varint(static_cast<uint64_t>(step))) + what;
}

class TensorBoardLog final : public ScalarLog {
 public:
  TensorBoardLog(const fs::path& folder, int64_t last) : folder_(folder), file_(new_file(folder), "") {
    file_.append(record_of(event_at(0, field(3, Wire::kBytes, "brain.Event:2"))));
    if (last == kEverythingStays) return;
    const std::string started = field(7, Wire::kBytes, field(1, Wire::kVarint, varint(1)));
    file_.append(record_of(event_at(last + 1, started)));
  }

  void add(const std::string& name, double value, int64_t at) override {
    const std::string scalar =
        field(1, Wire::kBytes, name) + field(2, Wire::kFloat, bytes_of(static_cast<float>(value)));
    file_.append(record_of(event_at(at, field(5, Wire::kBytes, field(1, Wire::kBytes, scalar)))));
  }

  std::string place() const override { return folder_.string(); }

 private:
  // Its name begins as TensorBoard wants it, and sorts by time.
  static fs::path new_file(const fs::path& folder) {
    make_folder(folder);
    static int made = 0;
    return folder / fmt::format("events.out.tfevents.{:.6f}.{}.{}.{}", now(), host_name(), getpid(), made++);
  }

  fs::path folder_;
  PatientFile file_;
};

}  // namespace

std::unique_ptr<ScalarLog> make_tensorboard_log(const fs::path& folder, int64_t last) {
  return std::make_unique<TensorBoardLog>(folder, last);
}

}  // namespace tessera::monitor
