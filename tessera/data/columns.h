// A column of an Arrow array as texts; shared by the readers that Arrow serves.
#pragma once

#include <arrow/type_fwd.h>

#include <string>
#include <vector>

namespace tessera::data {

// Row by row. ErrorKind::kData naming the row when one is null, and the type when it is not a string.
std::vector<std::string> texts_of(const arrow::ChunkedArray& column, const std::string& name, const std::string& path);

}  // namespace tessera::data
