#include "tessera/models/pickle_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

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

// A construction of an OrderedDict (the class, or its memo, then an empty tuple and REDUCE) becomes EMPTY_DICT, and
// BUILD, which would set its attributes, TUPLE2.
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

// How deeply the values are nested that a program makes: LibTorch's reader lets go of them by calling itself for each
// level. Values are not made, only counted. A list or dict may be filled until it is put somewhere or asked for by its
// number, so that its levels are known then, and it is not inside itself.
class Nesting {
 public:
  void run(std::string_view instruction) {
    const auto argument = [&] { return little_endian(instruction.substr(1)); };
    switch (static_cast<unsigned char>(instruction[0])) {
      case 0x80:  // PROTO
      case '.':   // STOP
        return;
      case '(':  // MARK
        return marks_.push_back(stack_.size());
      case '}':  // EMPTY_DICT
      case ']':  // EMPTY_LIST
        return push({.levels = 1, .is_open = true});
      case kBinPut:
      case kLongBinPut:
        memo_[argument()] = top();
        return;
      case kBinGet:
      case kLongBinGet:
        return push_again(argument());
      case 't':  // TUPLE
        return push_around(take_to_mark());
      case 0x85:  // TUPLE1
      case 'Q':   // BINPERSID
        return push_around(take(1));
      case 0x86:  // TUPLE2
      case kReduce:
        return push_around(take(2));
      case 0x87:  // TUPLE3
        return push_around(take(3));
      case 'a':  // APPEND
        return fill(take(1));
      case 's':  // SETITEM
        return fill(take(2));
      case 'e':  // APPENDS
      case 'u':  // SETITEMS
        return fill(take_to_mark());
      case '0':  // POP
        take(1);
        return;
      default:  // a class, a number, a text, None, True, False, ()
        return push({.levels = 1, .is_open = false});
    }
  }

 private:
  static constexpr int kMostLevels = 64;  // a state dict has six

  struct Value {
    int levels;
    bool is_open;  // it can be filled
  };

  void push(Value value) {
    if (value.levels > kMostLevels)
      throw std::invalid_argument("its pickle nests values more deeply than a state dict");
    stack_.push_back(values_.size());
    values_.push_back(value);
  }

  void push_around(int levels) { push({.levels = levels + 1, .is_open = false}); }

  void push_again(uint32_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) throw std::invalid_argument("its pickle asks for a value that it does not have");
    values_[found->second].is_open = false;
    stack_.push_back(found->second);
  }

  size_t top() const {
    const size_t bottom = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= bottom) throw std::invalid_argument("its pickle takes a value that is not there");
    return stack_.back();
  }

  // Takes `count` values off the stack; the most levels that one has.
  int take(size_t count) {
    int levels = 0;
    for (size_t i = 0; i < count; ++i) {
      Value& value = values_[top()];
      stack_.pop_back();
      value.is_open = false;
      levels = std::max(levels, value.levels);
    }
    return levels;
  }

  int take_to_mark() {
    if (marks_.empty()) throw std::invalid_argument("its pickle takes a value that is not there");
    const int levels = take(stack_.size() - marks_.back());
    marks_.pop_back();
    return levels;
  }

  void fill(int levels) {
    Value& value = values_[top()];
    if (!value.is_open) throw std::invalid_argument("its pickle changes a value that it has used");
    value.levels = std::max(value.levels, levels + 1);
    if (value.levels > kMostLevels)
      throw std::invalid_argument("its pickle nests values more deeply than a state dict");
  }

  std::vector<Value> values_;
  std::vector<size_t> stack_;  // which of them
  std::vector<size_t> marks_;  // heights of the stack
  std::map<uint32_t, size_t> memo_;
};

void require_shallow(std::string_view program) {
  Nesting nesting;
  for (size_t at = 0; at < program.size();) {
    const std::string_view instruction = program.substr(at, instruction_length(program, at));
    nesting.run(instruction);
    if (instruction[0] == '.') return;
    at += instruction.size();
  }
}

}  // namespace

std::string state_dict_program(std::string_view program) {
  std::string plain = with_plain_dicts(program);
  require_shallow(plain);
  return plain;
}

}  // namespace tessera::models
