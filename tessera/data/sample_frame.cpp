// The "post_processor" of a tokenizer.json, as what it puts around one text.
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/data/tokenizer_files.h"
#include "tessera/data/tokenizer_parts.h"

namespace tessera::data {
namespace {

using nlohmann::json;

SampleFrame by_template(const json& part, const std::string& path) {
  SampleFrame frame;
  const json tokens = part.value("special_tokens", json::object());
  bool before = true;
  for (const json& piece : part.value("single", json::array())) {
    if (piece.is_object() && piece.contains("Sequence")) {
      before = false;
      continue;
    }
    const json special = piece.is_object() ? piece.value("SpecialToken", json()) : json();
    const auto name = json_value(special, "id", std::string(), path);
    const json token = tokens.is_object() ? tokens.value(name, json()) : json();
    const json ids = token.is_object() ? token.value("ids", json()) : json();
    if (!ids.is_array() || ids.empty()) {
      throw Error(ErrorKind::kData, {fmt::format("the template's token '{:.100}' has no ids", name), path,
                                     "check the file, or get it again"});
    }
    for (const json& id : ids) (before ? frame.before : frame.after).push_back(read_id(id, name, path));
  }
  return frame;
}

// ["[CLS]", 101]
int32_t id_of_pair(const json& part, const char* key, const std::string& path) {
  const json pair = part.value(key, json());
  if (!pair.is_array() || pair.size() != 2) {
    throw Error(ErrorKind::kData, {fmt::format("the post_processor's '{}' is not a token and its id", key), path,
                                   "check the file, or get it again"});
  }
  return read_id(pair[1], pair[0].dump(), path);
}

}  // namespace

SampleFrame make_frame(const json& part, const std::string& path) {
  if (part.is_null()) return {};
  const auto type = json_value(part, "type", std::string(), path);
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return by_template(part, path);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return {.before = {id_of_pair(part, "cls", path)}, .after = {id_of_pair(part, "sep", path)}};
  }
  if (type == "Sequence") {
    SampleFrame frame;
    for (const json& each : part.value("processors", json::array())) {
      const SampleFrame more = make_frame(each, path);
      frame.before.insert(frame.before.begin(), more.before.begin(), more.before.end());
      frame.after.insert(frame.after.end(), more.after.begin(), more.after.end());
    }
    return frame;
  }
  throw Error(ErrorKind::kData,
              {fmt::format("the post_processor '{:.100}' is not supported", type), path,
               "supported: ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence"});
}

}  // namespace tessera::data
