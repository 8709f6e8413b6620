#include "tessera/models/state_dict_pickle.h"

#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/csrc/jit/serialization/storage_context.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/models/archive_records.h"
#include "tessera/models/pickle_program.h"

namespace tessera::models {
namespace {

// The archive's records. What a pickle claims of a storage is not what its record holds: a record that was cut short,
// or a claim made up, would have tensors reach into this process's own memory.
class Records {
 public:
  explicit Records(const std::string& path) : archive_(path), bytes_of_file_(std::filesystem::file_size(path)) {}

  std::pair<at::DataPtr, size_t> read(const std::string& name) {
    const size_t bytes = archive_.getRecordSize(name);
    if (bytes > bytes_of_file_) throw std::invalid_argument(fmt::format("'{}' is larger than the file", name));
    auto [data, got] = archive_.getRecord(name);
    bytes_of_[data.get()] = got;
    return {std::move(data), got};
  }

  void require_whole(const std::string& name, const at::Tensor& tensor) const {
    const auto& storage = tensor.storage();
    const auto found = bytes_of_.find(storage.data());
    const size_t bytes = found == bytes_of_.end() ? 0 : found->second;
    if (storage.nbytes() <= bytes) return;
    throw std::invalid_argument(
        fmt::format("the storage of '{}' has {} bytes instead of {}", name, bytes, storage.nbytes()));
  }

 private:
  caffe2::serialize::PyTorchStreamReader archive_;
  size_t bytes_of_file_;
  std::map<const void*, size_t> bytes_of_;
};

c10::IValue unpickle(Records& records) {
  const auto [data, bytes] = records.read("data.pkl");
  const std::string program = state_dict_program({static_cast<const char*>(data.get()), bytes});
  size_t at = 0;
  const auto read = [&program, &at](char* buffer, size_t wanted) {
    const size_t count = std::min(wanted, program.size() - at);
    std::memcpy(buffer, program.data() + at, count);
    at += count;
    return count;
  };
  const auto read_record = [&records](const std::string& name) { return records.read("data/" + name).first; };
  // A record that several tensors share is read once, as in Python.
  const auto shared = std::make_shared<torch::jit::DeserializationStorageContext>();
  torch::jit::Unpickler unpickler(read, nullptr, nullptr, read_record, c10::Device(c10::kCPU),
                                  /*use_storage_device=*/false, torch::jit::Unpickler::defaultTypeParser, shared);
  return unpickler.parse_ivalue();
}

}  // namespace

std::map<std::string, at::Tensor> read_state_dict(const std::string& path) {
  try {
    require_plain_records(path);
    Records records(path);
    c10::IValue value = unpickle(records);
    if (value.isTuple() && value.toTupleRef().size() == 2) value = value.toTupleRef().elements()[0];
    if (!value.isGenericDict()) throw std::invalid_argument("its top level is not a dict");
    std::map<std::string, at::Tensor> tensors;
    for (const auto& item : value.toGenericDict()) {
      if (!item.value().isTensor()) continue;
      const std::string name = item.key().toStringRef();
      tensors[name] = item.value().toTensor();
      records.require_whole(name, tensors[name]);
    }
    return tensors;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error(ErrorKind::kData, {"not a state dict of tensors: " + text.substr(0, text.find('\n')), path,
                                   "save the model as safetensors, or with torch.save(model.state_dict(), …)"});
  }
}

}  // namespace tessera::models
