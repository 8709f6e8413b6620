// The keys of Accelerate's configuration and what becomes of each here. Constant data; accelerate_config.h says whose.
#pragma once

#include <span>
#include <string_view>

namespace tessera::launch {

struct AccelerateKey {
  enum class Kind {
    kText,
    kWhole,         // an integer
    kBool,          // also yes, no, on and off, as in YAML 1.1
    kNumberOrAuto,  // "auto" is left to the program
    kBlock,         // its keys are another table, or it is refused unless it is empty
    kList,
  };
  enum class Use {
    kActs,
    kPassedOver,  // by Accelerate too, in the runs that there are here
    kRefused,     // unless it is empty, false or `harmless`: `instead` says why
  };
  std::string_view name;
  Kind kind;
  Use use = Use::kActs;
  std::string_view instead = {};
  std::string_view harmless = {};  // a text
};

std::span<const AccelerateKey> accelerate_keys();            // of the file
std::span<const AccelerateKey> accelerate_deepspeed_keys();  // of the block deepspeed_config

}  // namespace tessera::launch
