#include "tessera/storage/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/storage/dtype.h"

namespace tessera::storage {
namespace {

constexpr uint64_t kPrefixBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

uint64_t byte_count(at::ScalarType dtype, int64_t numel) {
  return static_cast<uint64_t>(numel) * c10::elementSize(dtype);
}

}  // namespace

int64_t TensorEntry::numel() const { return c10::multiply_integers(shape); }

struct SafetensorsFile::Mapping {
  const char* data = nullptr;
  uint64_t bytes = 0;

  explicit Mapping(const std::string& path) {
    require_input_file(path);
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      throw Error(ErrorKind::kData, {"the file cannot be opened: " + errno_text(errno), path, "check the path"});
    }
    struct stat info {};
    fstat(fd, &info);
    bytes = static_cast<uint64_t>(info.st_size);
    void* const mapped = bytes == 0 ? nullptr : mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error_number = errno;
    close(fd);
    if (mapped == MAP_FAILED) {
      throw Error(ErrorKind::kData, {"the file cannot be mapped: " + errno_text(error_number), path, ""});
    }
    data = static_cast<const char*>(mapped);
  }

  ~Mapping() {
    if (data != nullptr) munmap(const_cast<char*>(data), bytes);
  }

  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
};

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), mapping_(std::make_shared<Mapping>(path)) {
  read_header();
}

void SafetensorsFile::refuse(const std::string& what) const {
  throw Error(ErrorKind::kData, {"not a complete safetensors file: " + what, path_, "download or save the file again"});
}

void SafetensorsFile::read_header() {
  if (mapping_->bytes < kPrefixBytes) refuse(fmt::format("it has {} bytes", mapping_->bytes));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, mapping_->data, kPrefixBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > mapping_->bytes - kPrefixBytes) {
    refuse(fmt::format("its header claims {} bytes, but the file has {}", header_bytes, mapping_->bytes));
  }
  data_begin_ = kPrefixBytes + header_bytes;
  const uint64_t data_bytes = mapping_->bytes - data_begin_;
  const char* const text = mapping_->data + kPrefixBytes;
  nlohmann::json header;
  try {
    header = parse_json({text, header_bytes}, {.where = path_});
  } catch (const Error& error) {
    refuse("its header is not a JSON object: " + error.report().what);
  }
  if (!header.is_object()) refuse("its header is not a JSON object");

  uint64_t used = 0;
  for (const auto& [name, value] : header.items()) {
    try {
      if (name == "__metadata__") {
        metadata_ = value.get<std::map<std::string, std::string>>();
        continue;
      }
      const auto dtype = dtype_of_safetensors(value.at("dtype").get<std::string>());
      if (!dtype) refuse(fmt::format("'{}' has the unknown dtype {}", name, value.at("dtype").dump()));
      TensorEntry entry{.dtype = *dtype,
                        .shape = wholes_of<int64_t>(value.at("shape")),
                        .begin = whole_of<uint64_t>(value.at("data_offsets").at(0)),
                        .end = whole_of<uint64_t>(value.at("data_offsets").at(1))};
      int64_t numel = 1;
      for (const int64_t size : entry.shape) {
        if (size < 0 || (size > 0 && numel > std::numeric_limits<int64_t>::max() / 16 / size)) {
          refuse(fmt::format("'{}' has an impossible shape", name));
        }
        numel *= size;
      }
      if (entry.begin > entry.end || entry.end > data_bytes) {
        refuse(fmt::format("'{}' should end at byte {} but the file has {} (truncated?)", name, data_begin_ + entry.end,
                           mapping_->bytes));
      }
      if (entry.end - entry.begin != byte_count(*dtype, numel)) {
        refuse(fmt::format("'{}' has {} bytes where its shape needs {}", name, entry.end - entry.begin,
                           byte_count(*dtype, numel)));
      }
      used += entry.end - entry.begin;
      entries_.emplace(name, std::move(entry));
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {  // of the JSON library, or of a number that is no whole one
      refuse(fmt::format("its header has no usable entry for '{}'", name));
    }
  }
  if (used != data_bytes) {
    refuse(fmt::format("its tensors cover {} bytes but {} follow the header", used, data_bytes));
  }
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const auto& [name, entry] : entries_) places.emplace_back(entry.begin, entry.end);
  std::sort(places.begin(), places.end());
  uint64_t end = 0;
  for (const auto& [begin, next] : places) {
    if (begin != end) refuse(fmt::format("two of its tensors overlap before byte {}", data_begin_ + end));
    end = next;
  }
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw Error(ErrorKind::kData, {fmt::format("there is no tensor '{}'", name), path_, ""});
  }
  return range(name, 0, found->second.numel()).view(found->second.shape);
}

at::Tensor SafetensorsFile::range(const std::string& name, int64_t first, int64_t numel) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw Error(ErrorKind::kData, {fmt::format("there is no tensor '{}'", name), path_, ""});
  }
  const TensorEntry& entry = found->second;
  TESSERA_INVARIANT(first >= 0 && numel >= 0 && first + numel <= entry.numel());
  const char* const begin = mapping_->data + data_begin_ + entry.begin + byte_count(entry.dtype, first);
  const auto options = at::TensorOptions().dtype(entry.dtype);
  const auto size = static_cast<uintptr_t>(c10::elementSize(entry.dtype));
  if (reinterpret_cast<uintptr_t>(begin) % size != 0) {  // old writers did not pad their headers
    at::Tensor copy = at::empty({numel}, options);
    if (numel > 0) std::memcpy(copy.data_ptr(), begin, byte_count(entry.dtype, numel));
    return copy;
  }
  return at::from_blob(
      const_cast<char*>(begin), {numel}, [mapping = mapping_](void*) {}, options);
}

void SafetensorsFile::release(const std::string& name) const {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const TensorEntry& entry = entries_.at(name);
  const auto data = reinterpret_cast<uintptr_t>(mapping_->data) + data_begin_;
  const uintptr_t begin = (data + entry.begin + page - 1) / page * page, end = (data + entry.end) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

uint64_t data_bytes(const std::vector<PlannedTensor>& plan) {
  uint64_t bytes = 0;
  for (const PlannedTensor& planned : plan) bytes += byte_count(planned.dtype, c10::multiply_integers(planned.shape));
  return bytes;
}

std::string safetensors_header(const std::vector<PlannedTensor>& plan,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const PlannedTensor& planned : plan) {
    const uint64_t end = offset + byte_count(planned.dtype, c10::multiply_integers(planned.shape));
    header[planned.name] = {
        {"dtype", safetensors_name(planned.dtype)}, {"shape", planned.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data begins aligned
  const uint64_t header_bytes = text.size();
  std::string prefix(kPrefixBytes, '\0');
  std::memcpy(prefix.data(), &header_bytes, kPrefixBytes);
  return prefix + text;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<PlannedTensor> plan,
                                     const std::map<std::string, std::string>& metadata)
    : plan_(std::move(plan)), output_(path, safetensors_header(plan_, metadata).size() + data_bytes(plan_)) {
  const std::string header = safetensors_header(plan_, metadata);
  output_.append(header.data(), header.size());
}

void SafetensorsWriter::add(const at::Tensor& tensor) {
  TESSERA_INVARIANT(next_ < plan_.size());
  const PlannedTensor& planned = plan_[next_++];
  TESSERA_INVARIANT(tensor.scalar_type() == planned.dtype && tensor.numel() == c10::multiply_integers(planned.shape));
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  output_.append(bytes.const_data_ptr(), bytes.nbytes());
}

FileSum SafetensorsWriter::finish() {
  TESSERA_INVARIANT(next_ == plan_.size());
  return output_.finish();
}

}  // namespace tessera::storage
