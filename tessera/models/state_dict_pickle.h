// Reading a state dict that torch.save wrote (pytorch_model.bin). Tensors, dicts, lists and plain values are
// understood; nothing in the file is ever executed.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace tessera::models {

// ErrorKind::kData when the file is damaged or holds anything but a dict of tensors.
std::map<std::string, at::Tensor> read_state_dict(const std::string& path);

}  // namespace tessera::models
