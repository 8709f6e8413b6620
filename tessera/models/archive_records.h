// The directory of a zip archive, looked at before LibTorch's reader opens it, which makes room for whatever size the
// directory says a record has.
#pragma once

#include <string>

namespace tessera::models {

// std::invalid_argument, with a sentence: it is no zip archive, or one whose records are not as torch.save writes them,
// uncompressed and within the file. Reads the directory alone, which is no larger than the file.
void require_plain_records(const std::string& path);

}  // namespace tessera::models
