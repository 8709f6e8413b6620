#include "tessera/checkpoint/publish.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/fault_point.h"
#include "tessera/base/plain_name.h"
#include "tessera/storage/atomic_dir.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

void check_new_tag(const std::string& tag) {
  if (is_plain_name(tag) && tag != "latest" && !tag.ends_with(".saving") && !tag.ends_with(".old")) return;
  throw Error(ErrorKind::kUsage, {fmt::format("'{}' cannot be a checkpoint tag", tag), "save_checkpoint",
                                  "use a plain name, such as global_step100"});
}

void require_new(const fs::path& checkpoint_folder) {
  if (!fs::exists(checkpoint_folder)) return;
  throw Error(ErrorKind::kUsage, {"there is already a checkpoint of this name", checkpoint_folder.string(),
                                  "choose another folder, or remove it"});
}

void publish_checkpoint(const fs::path& folder, const Manifest& manifest, bool sets_latest) {
  const fs::path final_folder = folder / manifest.tag;
  storage::write_file_atomically(storage::aside_of(final_folder) / "manifest.json", to_text(manifest));
  fault_point();
  storage::publish(final_folder);
  fault_point();
  if (sets_latest) storage::write_file_atomically(folder / "latest", manifest.tag + "\n");
  fault_point();
}

}  // namespace tessera::checkpoint
