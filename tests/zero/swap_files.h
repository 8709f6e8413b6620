// A swap file that goes away with its folder.
#pragma once

#include <memory>

#include "tessera/storage/swap_file.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {

inline std::shared_ptr<storage::SwapFile> swap_file(const TemporaryFolder& folder) {
  return std::make_shared<storage::SwapFile>(folder.path().string(), storage::IoOptions{}, "test");
}

}  // namespace tessera::test
