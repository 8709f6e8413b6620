// Whether a folder's model is the one that a checkpoint of `tessera train` holds.
#pragma once

#include <filesystem>

namespace tessera::train {

// By the names and shapes of weights, as the folder's config.json has them. ErrorKind::kUsage, naming the first that
// differs, where it is another. A checkpoint of an adapter, or of a program or a model type of one's own, passes.
// `checkpoint`: as checkpoint::ExportInput's. Other errors: models/model.h, checkpoint/manifest.h.
void require_model_of(const std::filesystem::path& checkpoint, const std::filesystem::path& model);

}  // namespace tessera::train
