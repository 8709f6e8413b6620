#include "tessera/models/state_dict_pickle.h"

#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

// Pickle opcodes (Python's pickletools) that the rewriting below looks at.
enum Opcode : unsigned char {
  kGlobal = 'c',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kEmptyTuple = ')',
  kReduce = 'R',
  kEmptyDict = '}',
  kBuild = 'b',
  kTuple2 = 0x86,
};

constexpr std::string_view kOrderedDict = "collections\nOrderedDict\n";

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

// How many bytes the opcode at `at` takes, arguments included; torch.save writes protocol 2.
size_t instruction_length(std::string_view program, size_t at) {
  const auto lines = [&](int count) {
    size_t end = at;
    while (count-- > 0) {
      end = program.find('\n', end + 1);
      if (end == std::string_view::npos) throw std::invalid_argument("its pickle is cut short");
    }
    return end + 1 - at;
  };
  switch (static_cast<unsigned char>(program[at])) {
    case kGlobal:
      return lines(2);
    case 0x80:  // PROTO
    case kBinPut:
    case kBinGet:
    case 'K':  // BININT1
      return 2;
    case 'M':  // BININT2
      return 3;
    case kLongBinPut:
    case kLongBinGet:
    case 'J':  // BININT
      return 5;
    case 'G':  // BINFLOAT
      return 9;
    case 'X':  // BINUNICODE
      return 5 + little_endian(program.substr(at + 1, 4));
    case 0x8a:  // LONG1
      return 2 + little_endian(program.substr(at + 1, 1));
    case '(':
    case ')':
    case '}':
    case ']':
    case 't':
    case 0x85:
    case 0x86:
    case 0x87:
    case 'R':
    case 'Q':
    case 'N':
    case 0x88:
    case 0x89:
    case 's':
    case 'u':
    case 'a':
    case 'e':
    case 'b':
    case '0':
    case '.':
      return 1;
    default:
      throw std::invalid_argument(fmt::format("its pickle has the opcode {:#x}, which no state dict needs",
                                              static_cast<unsigned char>(program[at])));
  }
}

// LibTorch's reader makes room for as many memos as the highest number says, which Python counts up from 0.
void check_memo(std::string_view instruction, std::string_view program) {
  const bool is_put = instruction[0] == kBinPut || instruction[0] == kLongBinPut;
  if (is_put && little_endian(instruction.substr(1)) > program.size()) {
    throw std::invalid_argument("its pickle numbers more values than it has");
  }
}

// LibTorch's reader also makes objects of its own classes, and asks peers for remote ones; a state dict has neither.
void check_global(std::string_view instruction) {
  const std::string_view module = instruction.substr(1, instruction.find('\n') - 1);
  for (const std::string_view known : {"collections", "torch", "torch._utils", "torch._tensor"}) {
    if (module == known) return;
  }
  throw std::invalid_argument("its pickle names an object that is no part of a state dict");
}

// LibTorch's reader turns each OrderedDict() into None, which loses a module's state dict: it is one, with an
// attribute. So every construction of one (the class, or its memo, then an empty tuple and REDUCE) becomes an empty
// plain dict, and BUILD, which would set the attribute, becomes TUPLE2: the pair of the dict and its attributes.
std::string with_plain_dicts(std::string_view program) {
  std::string result;
  std::set<uint32_t> memos_of_class;
  for (size_t at = 0; at < program.size();) {
    const size_t length = instruction_length(program, at);
    if (at + length > program.size()) throw std::invalid_argument("its pickle is cut short");
    const std::string_view instruction = program.substr(at, length);
    check_memo(instruction, program);
    if (instruction[0] == kGlobal) check_global(instruction);
    const char opcode = instruction[0];
    bool is_class = opcode == kGlobal && instruction.substr(1) == kOrderedDict;
    size_t after = at + length;
    if (is_class && after < program.size() && (program[after] == kBinPut || program[after] == kLongBinPut)) {
      const size_t put = instruction_length(program, after);
      memos_of_class.insert(little_endian(program.substr(after + 1, put - 1)));
      after += put;
    } else if (opcode == kBinGet || opcode == kLongBinGet) {
      is_class = memos_of_class.contains(little_endian(instruction.substr(1)));
    }
    const bool constructs =
        is_class && after + 1 < program.size() && program[after] == kEmptyTuple && program[after + 1] == kReduce;
    if (constructs) {
      result += static_cast<char>(kEmptyDict);
      at = after + 2;
    } else {
      result += opcode == kBuild ? std::string(1, static_cast<char>(kTuple2)) : std::string(instruction);
      at += length;
    }
  }
  return result;
}

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
  const std::string program = with_plain_dicts({static_cast<const char*>(data.get()), bytes});
  size_t at = 0;
  const auto read = [&program, &at](char* buffer, size_t wanted) {
    const size_t count = std::min(wanted, program.size() - at);
    std::memcpy(buffer, program.data() + at, count);
    at += count;
    return count;
  };
  const auto read_record = [&records](const std::string& name) { return records.read("data/" + name).first; };
  torch::jit::Unpickler unpickler(read, nullptr, nullptr, read_record, c10::Device(c10::kCPU));
  return unpickler.parse_ivalue();
}

}  // namespace

std::map<std::string, at::Tensor> read_state_dict(const std::string& path) {
  try {
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
