// Numbers by name over steps, or over samples, in files that other programs show. One thread at a time. Where a file
// cannot be written, training goes on (patient_file.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>

namespace tessera::monitor {

class ScalarLog {
 public:
  virtual ~ScalarLog() = default;

  // Not a number and infinity are written as such. A name is a path of words: "train/loss".
  virtual void add(const std::string& name, double value, int64_t at) = 0;

  virtual std::string place() const = 0;
};

inline constexpr int64_t kEverythingStays = std::numeric_limits<int64_t>::max();

// Both go on after what the folder has, of which all that is later than `last` is void. The folder is made.
// ErrorKind::kMachine where it cannot be.

// A file for each name, as DeepSpeed has them: train/loss in train_loss.csv, with the line "step,loss" first.
std::unique_ptr<ScalarLog> make_csv_log(const std::filesystem::path& folder, int64_t last);

// TensorBoard's event files, one more for each process that writes.
std::unique_ptr<ScalarLog> make_tensorboard_log(const std::filesystem::path& folder, int64_t last);

}  // namespace tessera::monitor
