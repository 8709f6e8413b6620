#include "tessera/storage/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/storage/atomic_dir.h"

namespace tessera::storage::safetensors_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tessera_safetensors_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    path_ = (folder_ / "a.safetensors").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A file whose header is this text.
  void write_raw(const std::string& header, const std::string& data) {
    std::ofstream file(path_, std::ios::binary);
    const uint64_t bytes = header.size();
    file.write(reinterpret_cast<const char*>(&bytes), 8);
    file << header << data;
  }

  std::string error() {
    try {
      SafetensorsFile file(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(Safetensors, AreReadBackAsWritten) {
  const at::Tensor a = at::arange(6, at::kFloat).view({2, 3});
  const at::Tensor b = at::full({5}, 1.5).to(at::kBFloat16);
  const at::Tensor c = at::arange(3, at::kLong);
  {
    SafetensorsWriter writer(path_, {{"a", at::kFloat, {2, 3}}, {"b", at::kBFloat16, {5}}, {"c", at::kLong, {3}}},
                             {{"format", "pt"}});
    writer.add(a);
    writer.add(b);
    writer.add(c);
    writer.finish();
  }
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_TRUE(at::equal(file.tensor("a"), a));
  EXPECT_TRUE(at::equal(file.tensor("b"), b));
  EXPECT_TRUE(at::equal(file.tensor("c"), c));
  EXPECT_TRUE(at::equal(file.range("a", 2, 3), a.view({6}).narrow(0, 2, 3)));
  EXPECT_THROW(file.tensor("d"), Error);
}

TEST_F(Safetensors, ATensorOutlivesItsFile) {
  {
    SafetensorsWriter writer(path_, {{"a", at::kFloat, {4}}});
    writer.add(at::ones({4}));
    writer.finish();
  }
  const at::Tensor a = SafetensorsFile(path_).tensor("a");
  EXPECT_EQ(a.sum().item<float>(), 4);
}

// The bytes of the format's specification, written by hand: one fp32 tensor of two elements.
TEST_F(Safetensors, AreTheFormatOfTheSpecification) {
  const float values[] = {1.0f, -2.0f};
  write_raw(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
            std::string(reinterpret_cast<const char*>(values), 8));
  EXPECT_TRUE(at::equal(SafetensorsFile(path_).tensor("x"), at::tensor({1.0f, -2.0f})));
}

TEST_F(Safetensors, DamageIsNamed) {
  write_raw(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234");
  EXPECT_THAT(error(), HasSubstr("truncated?"));
  write_raw(R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678");
  EXPECT_THAT(error(), HasSubstr("'x' has 8 bytes where its shape needs 12"));
  write_raw(R"({"x":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", "12345678");
  EXPECT_THAT(error(), HasSubstr("unknown dtype"));
  write_raw(R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678");
  EXPECT_THAT(error(), HasSubstr("impossible shape"));
  write_raw("{\"x\":", "12345678");
  EXPECT_THAT(error(), HasSubstr("not a JSON object"));
  std::ofstream(path_, std::ios::binary) << "abc";
  EXPECT_THAT(error(), HasSubstr("it has 3 bytes"));
  std::ofstream(path_, std::ios::binary) << "\xff\xff\xff\xff\xff\xff\xff\x7f{}";
  EXPECT_THAT(error(), HasSubstr("its header claims"));
  fs::remove(path_);
  EXPECT_THAT(error(), HasSubstr("cannot be read: No such file"));
}

TEST_F(Safetensors, AnUnalignedFileOfAnOldWriterIsRead) {
  const float values[] = {3.0f};
  write_raw(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )",
            std::string(reinterpret_cast<const char*>(values), 4));
  EXPECT_EQ(SafetensorsFile(path_).tensor("x").item<float>(), 3.0f);
}

TEST_F(Safetensors, AFolderIsPublishedWholeOrNotAtAll) {
  const fs::path final_folder = folder_ / "c1";
  create_aside(final_folder);
  std::ofstream(aside_of(final_folder) / "x") << "1";
  EXPECT_FALSE(fs::exists(final_folder));
  publish(final_folder);
  EXPECT_TRUE(fs::exists(final_folder / "x"));
  EXPECT_FALSE(fs::exists(aside_of(final_folder)));

  create_aside(final_folder);
  std::ofstream(aside_of(final_folder) / "y") << "2";
  abandon(final_folder);
  EXPECT_TRUE(fs::exists(final_folder / "x"));
  EXPECT_FALSE(fs::exists(aside_of(final_folder)));
}

TEST_F(Safetensors, AFileIsReplacedAtomically) {
  write_file_atomically(folder_ / "latest", "one");
  write_file_atomically(folder_ / "latest", "two");
  EXPECT_EQ(read_input_file(folder_ / "latest"), "two");
  EXPECT_THROW(write_file_atomically(folder_ / "nowhere" / "latest", "x"), Error);
  EXPECT_THROW(read_input_file(folder_ / "nowhere"), Error);
}

}  // namespace
}  // namespace tessera::storage::safetensors_test
