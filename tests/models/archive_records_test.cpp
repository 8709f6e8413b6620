#include "tessera/models/archive_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tests/support/temporary_folder.h"

namespace tessera::models::archive_records_test {
namespace {

using testing::HasSubstr;

constexpr uint32_t kElsewhere = 0xFFFFFFFF;

std::string number(uint64_t value, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(i < sizeof(value) ? value >> (8 * i) : 0);
  return bytes;
}

// What the directory says of a record (PKWARE's APPNOTE.TXT, 4.3.12).
struct Entry {
  uint16_t method = 0;
  uint32_t stored = 4, whole = 4;
  std::string extra = {};

  std::string text() const {
    const std::string name = "archive/data/0";
    return "PK\x01\x02" + number(20, 2) + number(20, 2) + number(0, 2) + number(method, 2) + number(0, 8) +
           number(stored, 4) + number(whole, 4) + number(name.size(), 2) + number(extra.size(), 2) + number(0, 10) +
           number(0, 4) + name + extra;
  }
};

std::string end_record(uint32_t size, uint32_t begin) {
  return "PK\x05\x06" + number(0, 4) + number(1, 2) + number(1, 2) + number(size, 4) + number(begin, 4) + number(0, 2);
}

// Some bytes for a record, the directory, its end.
std::string small_archive(const Entry& entry) {
  const std::string record = "four", directory = entry.text();
  return record + directory + end_record(static_cast<uint32_t>(directory.size()), static_cast<uint32_t>(record.size()));
}

// The same with a directory that only the end record of large archives knows (4.3.14, 4.3.15).
std::string large_archive(const Entry& entry) {
  const std::string record = "four", directory = entry.text();
  const std::string large_end = "PK\x06\x06" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) +
                                number(1, 8) + number(1, 8) + number(directory.size(), 8) + number(record.size(), 8);
  const std::string locator = "PK\x06\x07" + number(0, 4) + number(record.size() + directory.size(), 8) + number(1, 4);
  return record + directory + large_end + locator + end_record(kElsewhere, kElsewhere);
}

// Sizes of 64 bits (4.5.3): of the whole, then of what is stored.
std::string large_sizes(uint64_t whole, uint64_t stored) {
  return number(0x5455, 2) + number(1, 2) + "t" + number(1, 2) + number(16, 2) + number(whole, 8) + number(stored, 8);
}

std::string said_of(const std::string& bytes) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "weights.bin";
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    require_plain_records(path);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "plain";
}

TEST(ArchiveRecords, AsTorchWritesThem) {
  EXPECT_EQ(said_of(small_archive({})), "plain");
  EXPECT_EQ(said_of(small_archive({}) + std::string(100, 'c')), "plain") << "with a comment";
  EXPECT_EQ(said_of(large_archive({})), "plain");
  EXPECT_EQ(said_of(large_archive({.stored = kElsewhere, .whole = kElsewhere, .extra = large_sizes(4, 4)})), "plain");
}

TEST(ArchiveRecords, SizesThatTheFileCannotHave) {
  EXPECT_THAT(said_of(small_archive({.stored = 1 << 27, .whole = 1 << 27})),
              HasSubstr("'archive/data/0' is compressed, or larger"));
  EXPECT_THAT(said_of(small_archive({.stored = 4, .whole = 1 << 27})), HasSubstr("larger than the file"));
  EXPECT_THAT(said_of(small_archive({.stored = kElsewhere, .whole = kElsewhere})), HasSubstr("larger than the file"));
  EXPECT_THAT(
      said_of(large_archive({.stored = kElsewhere, .whole = kElsewhere, .extra = large_sizes(uint64_t{1} << 40, 4)})),
      HasSubstr("larger than the file"));
  EXPECT_THAT(said_of(small_archive({.method = 8})), HasSubstr("compressed"));
}

TEST(ArchiveRecords, DirectoriesThatAreNone) {
  EXPECT_EQ(said_of(""), "it is no zip archive");
  EXPECT_EQ(said_of("four" + end_record(46, 1000)), "its zip directory lies outside of the file");
  EXPECT_EQ(said_of("four" + end_record(4, 0)), "its zip directory is damaged");
  EXPECT_EQ(said_of(Entry().text().substr(0, 40) + end_record(40, 0)), "its zip directory is cut short");
  EXPECT_EQ(said_of(Entry{.stored = kElsewhere, .extra = number(1, 2) + number(16, 2)}.text() + end_record(64, 0)),
            "its zip directory is cut short");
}

}  // namespace
}  // namespace tessera::models::archive_records_test
