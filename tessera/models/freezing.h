// A model of which some parameters are not trained: they keep their values, and have neither gradients nor optimizer
// state.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/models/model.h"

namespace tessera::models {

// `patterns`: names of parameters, or of modules, whose parameters are all meant ("bert.embeddings"), with * for any
// characters, ? for one and [0-5] for one of these ("bert.encoder.layer.[0-5]"). A tied parameter is frozen under each
// of its names.
//
// ErrorKind::kConfig, at once, where a pattern fits nothing, with the names nearest to it, or where nothing would be
// left to train; `where`: of the patterns, for the message.
std::unique_ptr<Model> with_frozen(std::unique_ptr<Model> model, const std::vector<std::string>& patterns,
                                   const std::string& where);

}  // namespace tessera::models
