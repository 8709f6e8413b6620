#include "tessera/storage/state_dict_writer.h"

#include <c10/util/accumulate.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/storage/file_output.h"

namespace tessera::storage {
namespace {

const char* storage_class(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "FloatStorage";
    case at::kDouble:
      return "DoubleStorage";
    case at::kHalf:
      return "HalfStorage";
    case at::kBFloat16:
      return "BFloat16Storage";
    case at::kLong:
      return "LongStorage";
    case at::kInt:
      return "IntStorage";
    case at::kShort:
      return "ShortStorage";
    case at::kChar:
      return "CharStorage";
    case at::kByte:
      return "ByteStorage";
    case at::kBool:
      return "BoolStorage";
    default:
      throw Error(ErrorKind::kData, {std::string("tensors of dtype ") + c10::toString(dtype) + " cannot be stored", "",
                                     "convert the tensor to a floating or integer dtype"});
  }
}

// A program for Python's unpickler, protocol 2; opcodes by their names in pickletools.
class Pickle {
 public:
  Pickle() { text_ = "\x80\x02"; }  // PROTO 2

  Pickle& op(const char* opcodes) {
    text_ += opcodes;
    return *this;
  }
  Pickle& global(const std::string& module, const std::string& name) {
    text_ += "c" + module + "\n" + name + "\n";
    return *this;
  }
  Pickle& string(const std::string& value) {  // BINUNICODE
    text_ += 'X';
    little_endian(value.size(), 4);
    text_ += value;
    return *this;
  }
  Pickle& integer(int64_t value) {
    const bool small = value >= 0 && value <= std::numeric_limits<int32_t>::max();
    text_ += small ? "J" : "\x8a\x08";  // BININT; LONG1 of 8 bytes
    little_endian(static_cast<uint64_t>(value), small ? 4 : 8);
    return *this;
  }
  Pickle& tuple(const std::vector<int64_t>& values) {
    op("(");
    for (const int64_t value : values) integer(value);
    return op("t");
  }
  const std::string& text() const { return text_; }

 private:
  void little_endian(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  std::string text_;
};

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(1, shape[i]);
  return strides;
}

}  // namespace

class StateDictWriter::Zip {
 public:
  explicit Zip(const std::string& path) : file_(path) {
    // The writer must not see exceptions, so they wait here.
    writer_ = std::make_unique<caffe2::serialize::PyTorchStreamWriter>([this](const void* bytes, size_t count) {
      try {
        if (!failure_) file_.append(bytes, count);
      } catch (const std::exception&) {
        failure_ = std::current_exception();
      }
      return failure_ ? size_t{0} : count;
    });
    check();
  }
  ~Zip() {
    try {
      writer_.reset();                 // may write what it holds back
    } catch (const std::exception&) {  // somebody else's exception is on its way
    }
  }

  void record(const std::string& name, const void* bytes, size_t count) {
    attempt([&] { writer_->writeRecord(name, bytes, count); });
  }

  FileSum finish() {
    attempt([&] { writer_->writeEndOfFile(); });
    return file_.finish();
  }

 private:
  template <class Work>
  void attempt(Work work) {
    try {
      work();
    } catch (const std::exception&) {
      check();  // what was behind it, rather than what the writer makes of it
      throw;
    }
    check();
  }
  void check() const {
    if (failure_) std::rethrow_exception(failure_);
  }

  FileOutput file_;
  std::exception_ptr failure_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamWriter> writer_;
};

StateDictWriter::StateDictWriter(const std::string& path) : zip_(std::make_unique<Zip>(path)) {}
StateDictWriter::~StateDictWriter() = default;

void StateDictWriter::add(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  zip_->record(fmt::format("data/{}", records_), bytes.const_data_ptr(), bytes.nbytes());
  entries_.push_back({name, records_++, bytes.scalar_type(), bytes.sizes().vec()});
}

void StateDictWriter::add_alias(const std::string& name, const std::string& of) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == of; });
  TESSERA_INVARIANT(found != entries_.end());
  Entry alias = *found;
  alias.name = name;
  entries_.push_back(std::move(alias));
}

FileSum StateDictWriter::finish() {
  Pickle pickle;
  pickle.op("}(");  // EMPTY_DICT MARK
  for (const Entry& entry : entries_) {
    pickle.string(entry.name).global("torch._utils", "_rebuild_tensor_v2").op("((").string("storage");
    pickle.global("torch", storage_class(entry.dtype)).string(std::to_string(entry.record)).string("cpu");
    pickle.integer(c10::multiply_integers(entry.shape)).op("tQ").integer(0);     // TUPLE BINPERSID, then the offset
    pickle.tuple(entry.shape).tuple(row_major_strides(entry.shape)).op("\x89");  // NEWFALSE: requires_grad
    pickle.global("collections", "OrderedDict").op(")RtR");  // EMPTY_TUPLE REDUCE: hooks; TUPLE REDUCE
  }
  pickle.op("u.");  // SETITEMS STOP
  zip_->record("data.pkl", pickle.text().data(), pickle.text().size());
  return zip_->finish();
}

}  // namespace tessera::storage
