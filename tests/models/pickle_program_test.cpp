#include "tessera/models/pickle_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace tessera::models::pickle_program_test {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;

// A collection of an ordered dict of one list, as Python's pickle.dumps(…, protocol=2) writes it.
TEST(PickleProgram, AnOrderedDictBecomesAPlainOne) {
  EXPECT_EQ(state_dict_program("\x80\x02"
                               "ccollections\nOrderedDict\nq\x00)Rq\x01X\x01\x00\x00\x00"
                               "aq\x02]q\x03s."s),
            "\x80\x02}q\x01X\x01\x00\x00\x00"
            "aq\x02]q\x03s."s);
}

TEST(PickleProgram, AValueMayBeUsedTwice) {
  EXPECT_EQ(state_dict_program("\x80\x02](]q\x01h\x01"
                               "e."s),
            "\x80\x02](]q\x01h\x01"
            "e."s);
}

struct Case {
  std::string name;
  std::string program;
  std::string what;
};

class Refused : public testing::TestWithParam<Case> {};

TEST_P(Refused, WithASentence) {
  try {
    state_dict_program(GetParam().program);
    ADD_FAILURE() << "it is taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr(GetParam().what));
  }
}

std::string times(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// Lists, each open and numbered, then from the last on each filled with the one before by its number: as deep as the
// lists are many, although none of them was filled when it was asked for.
std::string chain_of_open_lists() {
  return "]q\x00]q\x01]q\x02h\x01"
         "a0h\x00"
         "a."s;
}

INSTANTIATE_TEST_SUITE_P(
    What, Refused,
    testing::Values(Case{"lists", times("]", 200000) + times("a", 199999) + ".", "nests values more deeply"},
                    Case{"tuples", ")" + times("\x85", 200000) + ".", "nests values more deeply"},
                    Case{"dicts", times("}N", 200000) + "N" + times("s", 200000) + ".", "nests values more deeply"},
                    Case{"attributes", times("}", 200000) + times("b", 199999) + ".", "nests values more deeply"},
                    Case{"itself",
                         "]q\x00h\x00"
                         "a."s,
                         "changes a value that it has used"},
                    Case{"open_lists", chain_of_open_lists(), "changes a value that it has used"},
                    Case{"changed_later",
                         "]]q\x00"
                         "ah\x00]a."s,
                         "changes a value that it has used"},
                    Case{"empty_stack", "a.", "takes a value that is not there"},
                    Case{"no_mark", "}u.", "takes a value that is not there"},
                    Case{"no_memo", "h\x07."s, "asks for a value that it does not have"},
                    Case{"memo_number", "}r\xff\xff\xff\x7f.", "numbers more values than it has"},
                    Case{"class", "cos\nsystem\n.", "names an object"}, Case{"opcode", "i", "opcode 0x69"},
                    Case{"cut",
                         "X\x10\x00\x00\x00"
                         "ab"s,
                         "cut short"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::models::pickle_program_test
