#include "tessera/storage/atomic_dir.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <system_error>

#include "tessera/base/atomic_file.h"
#include "tessera/base/fault_point.h"
#include "tessera/base/log.h"

namespace tessera::storage {
namespace fs = std::filesystem;

namespace {

// What took the folder's place is published, so that nothing fails any more: a disk that failed once is asked again,
// and what is left is said.
void remove_earlier(const fs::path& folder) {
  std::error_code error;
  for (int attempt = 0; attempt < 2; ++attempt) {
    fs::remove_all(folder, error);
    if (!error) return;
  }
  log_warning("the earlier folder could not be removed, and takes room: {} ({})", folder.string(), error.message());
}

}  // namespace

fs::path aside_of(const fs::path& final_folder) { return final_folder.string() + ".saving"; }

void create_aside(const fs::path& final_folder) {
  const fs::path aside = aside_of(final_folder);
  std::error_code error;
  fs::remove_all(aside, error);
  if (!error) fs::create_directories(aside, error);
  if (error) machine_refused("the folder cannot be created", error.value(), aside);
}

void publish(const fs::path& final_folder) {
  const fs::path aside = aside_of(final_folder);
  sync_folder(aside);
  std::error_code error;
  // At no moment without a folder of that name, where the file system can exchange two names.
  if (fs::exists(final_folder, error) &&
      renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, final_folder.c_str(), RENAME_EXCHANGE) == 0) {
    fault_point();
    sync_folder_of(final_folder);
    remove_earlier(aside);
    return;
  }
  if (fs::exists(final_folder, error)) {
    const fs::path old = final_folder.string() + ".old";
    fs::remove_all(old, error);
    fs::rename(final_folder, old, error);
    if (error) machine_refused("the earlier folder cannot be moved aside", error.value(), final_folder);
    fault_point();
  }
  fs::rename(aside, final_folder, error);
  if (error) machine_refused("the folder cannot be renamed", error.value(), aside);
  sync_folder_of(final_folder);
  remove_earlier(final_folder.string() + ".old");
}

void abandon(const fs::path& final_folder) noexcept {
  std::error_code error;
  fs::remove_all(aside_of(final_folder), error);
}

void write_file_atomically(const fs::path& path, const std::string& text) {
  tessera::write_file_atomically(path, text);
}

}  // namespace tessera::storage
