// A model whose frozen linear layers keep their weights as NF4 (nn/nf4_product.h): the base of QLoRA (Dettmers et al.
// 2023), whose adapter alone is trained.
#pragma once

#include <memory>
#include <string>

#include "tessera/models/model.h"

namespace tessera::models {

// Quantizes every linear layer of network() that an adapter could be beside (models/adapters.h) and whose weight does
// not train: all but the output layer and what the adapter trains whole.
//
// ErrorKind::kConfig, at once, where there is none; `where`: of the option, for the message.
std::unique_ptr<Model> with_nf4_weights(std::unique_ptr<Model> model, const std::string& where);

}  // namespace tessera::models
