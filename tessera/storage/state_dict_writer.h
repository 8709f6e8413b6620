// A state dict as torch.save writes it (a zip of a pickle and the tensors' bytes), so that
// torch.load(weights_only=True) reads it back; one tensor at a time is in memory.
//
//   StateDictWriter writer("pytorch_model.bin");
//   writer.add("weight", tensor);
//   writer.add_alias("head.weight", "weight");   // another name of the same storage
//   writer.finish();                             // fsynced; gives its checksums; not a state dict before that
//
// ErrorKind::kMachine with the path when the disk refuses.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/storage/file_sum.h"

namespace tessera::storage {

class StateDictWriter {
 public:
  explicit StateDictWriter(const std::string& path);
  ~StateDictWriter();
  StateDictWriter(const StateDictWriter&) = delete;
  StateDictWriter& operator=(const StateDictWriter&) = delete;

  void add(const std::string& name, const at::Tensor& tensor);  // floating, integer or bool
  void add_alias(const std::string& name, const std::string& of);
  FileSum finish();

 private:
  class Zip;
  struct Entry {
    std::string name;
    size_t record;  // number of the storage's record
    at::ScalarType dtype;
    std::vector<int64_t> shape;
  };

  std::unique_ptr<Zip> zip_;
  std::vector<Entry> entries_;
  size_t records_ = 0;
};

}  // namespace tessera::storage
