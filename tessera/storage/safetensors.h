// The safetensors format: 8 bytes (little endian) that say how long the header is, a JSON header that says of each
// tensor its dtype, shape and byte range, then the bytes.
//
//   { "<name>": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …, "__metadata__": {"key": "text"} }
//
// The reader maps the file and checks everything before it hands out a tensor: ErrorKind::kData names the file and what
// is wrong with it (truncated, overlapping, a header that is not JSON, …). The writer streams: it needs all shapes
// first, then the tensors one at a time, and never holds more than one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/storage/file_output.h"

namespace tessera::storage {

struct TensorEntry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin;  // bytes from the end of the header
  uint64_t end;

  int64_t numel() const;
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return entries_.contains(name); }

  // Where the tensors' bytes begin in the file.
  uint64_t data_begin() const { return data_begin_; }

  // A tensor over the mapped file: nothing is read until it is touched. It shares ownership of the mapping. Read only:
  // writing to it is a fault. ErrorKind::kData when there is no such tensor.
  at::Tensor tensor(const std::string& name) const;

  // Elements [first, first + numel) of the tensor in row-major order, as a flat tensor over the mapped file.
  at::Tensor range(const std::string& name, int64_t first, int64_t numel) const;

  // Its pages leave this process's memory; whoever touches them again reads them again.
  void release(const std::string& name) const;

 private:
  struct Mapping;
  [[noreturn]] void refuse(const std::string& what) const;
  void read_header();

  std::string path_;
  std::shared_ptr<Mapping> mapping_;
  uint64_t data_begin_ = 0;
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct PlannedTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
};

// What comes before the tensors' bytes: the length of the header, and the header.
std::string safetensors_header(const std::vector<PlannedTensor>& plan,
                               const std::map<std::string, std::string>& metadata = {});

// Of the tensors' bytes together.
uint64_t data_bytes(const std::vector<PlannedTensor>& plan);

class SafetensorsWriter {
 public:
  // Creates the file, as large as it will be, and writes the header. Tensors follow in the order planned.
  SafetensorsWriter(const std::string& path, std::vector<PlannedTensor> plan,
                    const std::map<std::string, std::string>& metadata = {});

  // The next planned tensor; same dtype and numel as planned, any device, contiguous or not.
  void add(const at::Tensor& tensor);

  // Flushes to the disk (fsync) and closes. All planned tensors must have been added. ErrorKind::kMachine with errno
  // and path when the disk refuses (full, read only, …), here or before.
  FileSum finish();

 private:
  std::vector<PlannedTensor> plan_;
  size_t next_ = 0;
  FileOutput output_;
};

}  // namespace tessera::storage
