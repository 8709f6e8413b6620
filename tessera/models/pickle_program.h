// The program that a pickle is (Python's pickletools), looked at before LibTorch's reader runs it.
#pragma once

#include <string>
#include <string_view>

namespace tessera::models {

// A program that LibTorch's reader makes the same state dict of as Python does; of another kind than `program`, the
// data.pkl of torch.save, in this alone: each OrderedDict() is a plain dict, which LibTorch's reader turns into None,
// and a dict that has attributes, as a module's state dict has, is the pair of itself and them.
//
// std::invalid_argument, with a sentence about "its pickle": what no state dict needs and what would have the reader
// take memory or stack without a bound: other opcodes, classes, values that are nested deeply, or numbered beyond
// their count. In time and memory bounded by the program's size.
std::string state_dict_program(std::string_view program);

}  // namespace tessera::models
