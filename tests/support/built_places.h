#pragma once

#include <string>

// Places in this tree. Said here instead of on the command line of each test, so that one compiler cache serves all
// trees.
namespace tessera::test {

std::string source_folder();
std::string nccl_stand_in();  // the library that stands for libnccl.so.2
std::string launch_tool();    // a launcher to be started, tests/launch/launch_tool.cpp

}  // namespace tessera::test
