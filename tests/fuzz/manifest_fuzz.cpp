#include "tessera/checkpoint/manifest.h"
#include "tessera/storage/file_sum.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::manifest_fuzz {
namespace {

// Damage would stop at the checksum; what lies behind it is for manifests that somebody made up.
std::string with_own_sum(std::string text) {
  constexpr std::string_view kSum = "\"xxh3\": \"";
  const size_t place = text.find(kSum);
  if (place == std::string::npos || text.size() < place + kSum.size() + 16) return text;
  text.replace(place + kSum.size(), 16, 16, '0');
  const std::string sum = storage::to_text({storage::hash_of(text.data(), text.size())});
  return text.replace(place + kSum.size(), 16, sum);
}

}  // namespace

TESSERA_FUZZ_TARGET(manifest) {
  // manifest.json and `latest`, beside a shard file of 8 bytes.
  const TemporaryFolder folder;
  const auto parts = parts_of(bytes, 2);
  write(folder, "shard-00000-of-00001.safetensors", std::string(8, '\0'));
  write(folder, "latest", parts[1]);
  write(folder, "manifest.json", with_own_sum(parts[0]));
  checkpoint::read_latest(folder.path());
  for (const auto& [name, tensor] : checkpoint::read_manifest(checkpoint::resolve(folder.path())).tensors)
    tensor.numel();
}

}  // namespace tessera::fuzz::manifest_fuzz
