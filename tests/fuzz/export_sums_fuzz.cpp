#include "tessera/checkpoint/export_sums.h"
#include "tests/fuzz/right_sum.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::export_sums_fuzz {

TESSERA_FUZZ_TARGET(export_sums) {
  const TemporaryFolder folder;
  write(folder, checkpoint::kExportSums, with_right_sum(std::string(bytes)));
  checkpoint::read_export_sums(folder.path());
}

}  // namespace tessera::fuzz::export_sums_fuzz
