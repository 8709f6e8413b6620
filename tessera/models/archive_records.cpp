#include "tessera/models/archive_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>

namespace tessera::models {
namespace {

// PKWARE's APPNOTE.TXT, 4.3: the directory has an entry for each record; its place is in the end record, or in the one
// of large archives (zip64), which a locator just before the end record points to.
constexpr std::string_view kEntry = "PK\x01\x02";
constexpr std::string_view kEnd = "PK\x05\x06";
constexpr std::string_view kLocator = "PK\x06\x07";
constexpr std::string_view kLargeEnd = "PK\x06\x06";
constexpr size_t kEntrySize = 46, kEndSize = 22, kLocatorSize = 20, kLargeEndSize = 56;
constexpr uint64_t kLongestComment = 65535;
constexpr uint64_t kIsElsewhere = 0xFFFFFFFF;  // a size that is in the entry's extra fields
constexpr uint64_t kLargeSizes = 1;            // the number of that field

// Bytes of the archive, which may be asked for anything.
class Bytes {
 public:
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}

  uint64_t number(size_t at, size_t size) const {
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(text(at, size)[i])} << (8 * i);
    return value;
  }
  std::string_view text(size_t at, size_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) throw std::invalid_argument("its zip directory is cut short");
    return std::string_view(bytes_).substr(at, size);
  }
  size_t size() const { return bytes_.size(); }
  size_t last(std::string_view mark) const { return bytes_.rfind(mark); }

 private:
  std::string bytes_;
};

class Archive {
 public:
  explicit Archive(const std::string& path) : file_(path, std::ios::binary), bytes_(std::filesystem::file_size(path)) {}

  uint64_t bytes() const { return bytes_; }

  Bytes read(uint64_t at, uint64_t size) {
    if (at > bytes_ || size > bytes_ - at) throw std::invalid_argument("its zip directory lies outside of the file");
    std::string text(size, '\0');
    file_.seekg(static_cast<std::streamoff>(at));
    if (!file_.read(text.data(), static_cast<std::streamsize>(size))) throw std::invalid_argument("it cannot be read");
    return Bytes(std::move(text));
  }

  Bytes directory() {
    const uint64_t tail_size = std::min<uint64_t>(bytes_, kEndSize + kLongestComment + kLocatorSize);
    const Bytes tail = read(bytes_ - tail_size, tail_size);
    const size_t end = tail.last(kEnd);
    if (end == std::string::npos) throw std::invalid_argument("it is no zip archive");
    if (end >= kLocatorSize && tail.text(end - kLocatorSize, kLocator.size()) == kLocator) {
      const Bytes large = read(tail.number(end - kLocatorSize + 8, 8), kLargeEndSize);
      if (large.text(0, kLargeEnd.size()) != kLargeEnd) throw std::invalid_argument("its zip directory is damaged");
      return read(large.number(48, 8), large.number(40, 8));
    }
    return read(tail.number(end + 16, 4), tail.number(end + 12, 4));
  }

 private:
  std::ifstream file_;
  uint64_t bytes_;
};

struct Sizes {
  uint64_t stored, whole;
};

// Those of the entry at `at`, whose extra fields begin at `extra`.
Sizes sizes_of(const Bytes& directory, size_t at, size_t extra) {
  Sizes sizes{.stored = directory.number(at + 20, 4), .whole = directory.number(at + 24, 4)};
  const size_t end = extra + directory.number(at + 30, 2);
  for (size_t field = extra; field + 4 <= end; field += 4 + directory.number(field + 2, 2)) {
    if (directory.number(field, 2) != kLargeSizes) continue;
    size_t value = field + 4;
    for (uint64_t* const size : {&sizes.whole, &sizes.stored}) {
      if (*size != kIsElsewhere) continue;
      *size = directory.number(value, 8);
      value += 8;
    }
  }
  return sizes;
}

}  // namespace

void require_plain_records(const std::string& path) {
  Archive archive(path);
  const Bytes directory = archive.directory();
  for (size_t at = 0; at < directory.size();) {
    if (directory.text(at, kEntry.size()) != kEntry) throw std::invalid_argument("its zip directory is damaged");
    const uint64_t method = directory.number(at + 10, 2), name_size = directory.number(at + 28, 2);
    const size_t extra = at + kEntrySize + name_size;
    const Sizes sizes = sizes_of(directory, at, extra);
    if (method != 0 || sizes.stored != sizes.whole || sizes.whole > archive.bytes()) {
      throw std::invalid_argument(fmt::format("its record '{}' is compressed, or larger than the file",
                                              directory.text(at + kEntrySize, name_size)));
    }
    const size_t next = extra + directory.number(at + 30, 2) + directory.number(at + 32, 2);
    directory.text(at, next - at);  // all of it is there
    at = next;
  }
}

}  // namespace tessera::models
