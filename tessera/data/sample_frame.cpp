// The "post_processor" of a tokenizer.json, as what it puts around one text, or around two.
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/data/tokenizer_files.h"
#include "tessera/data/tokenizer_parts.h"

namespace tessera::data {
namespace {

using nlohmann::json;

// The ids of a template's special token.
std::vector<int32_t> ids_of_special(const json& special, const json& tokens, const std::string& path) {
  const auto name = json_value(special, "id", std::string(), path);
  const json token = tokens.is_object() ? tokens.value(name, json()) : json();
  const json ids = token.is_object() ? token.value("ids", json()) : json();
  if (!ids.is_array() || ids.empty()) {
    throw Error(ErrorKind::kData, {fmt::format("the template's token '{:.100}' has no ids", name), path,
                                   "check the file, or get it again"});
  }
  std::vector<int32_t> numbers;
  for (const json& id : ids) numbers.push_back(read_id(id, name, path));
  return numbers;
}

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
    for (const int32_t id : ids_of_special(special, tokens, path)) {
      (before ? frame.before : frame.after).push_back(id);
    }
  }
  return frame;
}

std::optional<PairFrame> pair_by_template(const json& part, const std::string& path) {
  PairFrame frame;
  const json tokens = part.value("special_tokens", json::object());
  std::string texts;  // that came so far: "", "A", "AB"
  for (const json& piece : part.value("pair", json::array())) {
    if (!piece.is_object()) return std::nullopt;
    if (const auto text = piece.find("Sequence"); text != piece.end()) {
      texts += json_value(*text, "id", std::string(), path);
      (texts == "A" ? frame.first_type : frame.second_type) = json_value<int32_t>(*text, "type_id", 0, path);
      continue;
    }
    const json special = piece.value("SpecialToken", json());
    const auto type = json_value<int32_t>(special, "type_id", 0, path);
    auto& here = texts.empty() ? frame.before : texts == "A" ? frame.between : frame.after;
    for (const int32_t id : ids_of_special(special, tokens, path)) here.push_back({id, type});
  }
  return texts == "AB" ? std::optional(frame) : std::nullopt;
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

std::vector<bool> make_offset_trims(const json& part, const std::string& path) {
  const auto type = json_value(part, "type", std::string(), path);
  std::vector<bool> trims;
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    if (json_value(part, "trim_offsets", true, path)) trims.push_back(json_value(part, "add_prefix_space", true, path));
  } else if (type == "Sequence") {
    for (const json& each : part.value("processors", json::array())) {
      for (const bool trim : make_offset_trims(each, path)) trims.push_back(trim);
    }
  }
  return trims;
}

PairFrame bert_pair_frame(int32_t cls, int32_t sep) {
  return {.before = {{cls, 0}}, .between = {{sep, 0}}, .after = {{sep, 1}}, .first_type = 0, .second_type = 1};
}

std::optional<PairFrame> make_pair_frame(const json& part, const std::string& path) {
  const auto type = json_value(part, "type", std::string(), path);
  if (type == "TemplateProcessing") return pair_by_template(part, path);
  if (type == "BertProcessing") return bert_pair_frame(id_of_pair(part, "cls", path), id_of_pair(part, "sep", path));
  if (type == "RobertaProcessing") {
    const int32_t cls = id_of_pair(part, "cls", path), sep = id_of_pair(part, "sep", path);
    return PairFrame{.before = {{cls, 0}}, .between = {{sep, 0}, {sep, 0}}, .after = {{sep, 0}}};
  }
  std::optional<PairFrame> only;
  if (type != "Sequence") return only;
  for (const json& each : part.value("processors", json::array())) {
    std::optional<PairFrame> found = make_pair_frame(each, path);
    if (found && only) return std::nullopt;
    if (found) only = std::move(found);
  }
  return only;
}

}  // namespace tessera::data
