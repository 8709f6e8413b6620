#include "tessera/checkpoint/manifest.h"
#include "tests/fuzz/right_sum.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::manifest_fuzz {
TESSERA_FUZZ_TARGET(manifest) {
  // manifest.json and `latest`, beside a shard file of 8 bytes.
  const TemporaryFolder folder;
  const auto parts = parts_of(bytes, 2);
  write(folder, "shard-00000-of-00001.safetensors", std::string(8, '\0'));
  write(folder, "latest", parts[1]);
  write(folder, "manifest.json", with_right_sum(parts[0]));
  checkpoint::read_latest(folder.path());
  for (const auto& [name, tensor] : checkpoint::read_manifest(checkpoint::resolve(folder.path())).tensors)
    tensor.numel();
}

}  // namespace tessera::fuzz::manifest_fuzz
