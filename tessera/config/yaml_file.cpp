#include "tessera/config/yaml_file.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/config/hjson.h"

namespace tessera::config {
namespace {

Json plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  const double infinity = std::numeric_limits<double>::infinity();
  if (text == ".inf" || text == "+.inf" || text == ".Inf") return infinity;
  if (text == "-.inf" || text == "-.Inf") return -infinity;
  if (isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-' || text[0] == '+' || text[0] == '.') {
    const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
    const char* end = text.data() + text.size();
    int64_t whole = 0;
    if (const auto read = std::from_chars(begin, end, whole); read.ec == std::errc() && read.ptr == end) return whole;
    double number = 0;
    if (const auto read = std::from_chars(begin, end, number);
        read.ec == std::errc() && read.ptr == end && std::isfinite(number)) {
      return number;
    }
  }
  return text;
}

class Reader {
 public:
  explicit Reader(const std::string& name) : document_{name, {}, {}} {}

  Document read(const YAML::Node& root) {
    document_.value = value_of(root, Pointer(), 0);
    return std::move(document_);
  }

 private:
  Json value_of(const YAML::Node& node, const Pointer& key, int depth) {
    if (depth > kDeepestNesting)
      fail(node.Mark(), fmt::format("nested more than {} levels deep", kDeepestNesting), "flatten it");
    if (document_.places.size() > kMostValues)
      fail(node.Mark(), fmt::format("there are more than {} values", kMostValues), "write fewer");
    switch (node.Type()) {
      case YAML::NodeType::Map:
        return object_of(node, key, depth);
      case YAML::NodeType::Sequence: {
        Json array = Json::array();
        for (const YAML::Node& element : node) {
          const Pointer child = key / array.size();
          document_.places[child.to_string()] = place_of(element.Mark());
          array.push_back(value_of(element, child, depth + 1));
        }
        return array;
      }
      case YAML::NodeType::Scalar:
        // Quoted text carries the tag "!": it stays text even when it looks like a number.
        require_utf8(node);
        return node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str" ? Json(node.Scalar())
                                                                          : plain_scalar(node.Scalar());
      default:
        return nullptr;
    }
  }

  Json object_of(const YAML::Node& node, const Pointer& key, int depth) {
    Json object = Json::object();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) fail(entry.first.Mark(), "a key must be a word", "write key: value");
      require_utf8(entry.first);
      const std::string name = entry.first.Scalar();
      const Pointer child = key / name;
      const Place place = place_of(entry.first.Mark());
      if (object.contains(name)) {
        fail(entry.first.Mark(), fmt::format("'{}' is given twice", dotted(child)),
             fmt::format("keep one; the first is at {}", document_.places[child.to_string()].text()));
      }
      document_.places[child.to_string()] = place;
      object[name] = value_of(entry.second, child, depth + 1);
    }
    return object;
  }

  // yaml-cpp passes any bytes on.
  void require_utf8(const YAML::Node& scalar) const {
    if (!is_utf8(scalar.Scalar())) fail(scalar.Mark(), "this text is not valid UTF-8", "save the file as UTF-8");
  }

  Place place_of(const YAML::Mark& mark) const { return {document_.name, mark.line + 1, mark.column + 1}; }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what, const std::string& fix) const {
    throw Error(ErrorKind::kConfig, {what, place_of(mark).text(), fix});
  }

  Document document_;
};

// Where the documents of a file begin. YAML::LoadAll would have told, but makes empty documents for ever of a bracket
// or comma that belongs to nothing.
class DocumentStarts final : public YAML::EventHandler {
 public:
  std::vector<YAML::Mark> marks;

  void OnDocumentStart(const YAML::Mark& mark) override { marks.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

void require_one_document(const std::string& text, const std::string& name) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (starts.marks.size() < 2 && parser.HandleNextDocument(starts)) {
  }
  if (starts.marks.size() < 2) return;
  const YAML::Mark& second = starts.marks[1];
  if (text.find("---") != std::string::npos) {
    throw Error(ErrorKind::kConfig, {"there is more than one YAML document in the file", name, "keep one"});
  }
  throw YAML::ParserException(second, "there is something left after the end of the document");
}

bool looks_like_json(const std::string& text) {
  size_t at = text.compare(0, 3, "\xEF\xBB\xBF") == 0 ? 3 : 0;
  while ((at = text.find_first_not_of(" \t\r\n", at)) != std::string::npos) {
    if (text.compare(at, 2, "//") == 0) {
      at = text.find('\n', at);
    } else if (text.compare(at, 2, "/*") == 0) {
      at = text.find("*/", at);
      if (at != std::string::npos) at += 2;
    } else {
      return text[at] == '{';
    }
    if (at == std::string::npos) break;
  }
  return false;
}

void emit(const nlohmann::ordered_json& value, YAML::Emitter& out) {
  if (value.is_object()) {
    out << YAML::BeginMap;
    for (const auto& [key, each] : value.items()) {
      out << YAML::Key << key << YAML::Value;
      emit(each, out);
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    out << YAML::BeginSeq;
    for (const auto& each : value) emit(each, out);
    out << YAML::EndSeq;
  } else if (value.is_string()) {
    out << value.get<std::string>();
  } else {
    out << value.dump();
  }
}

}  // namespace

Document parse_yaml(const std::string& text, const std::string& name) {
  try {
    require_one_document(text, name);
    return Reader(name).read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    const Place place{name, error.mark.line + 1, error.mark.column + 1};
    throw Error(ErrorKind::kConfig, {"not valid YAML: " + error.msg, place.text(),
                                     "check the indentation, the brackets and the quotes there"});
  }
}

std::string read_text(const std::string& path) {
  constexpr uint64_t kMostBytes = 1 << 20;  // far beyond any configuration
  return read_input_file(path, ErrorKind::kConfig, kMostBytes);
}

bool is_yaml_name(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  return extension == ".yaml" || extension == ".yml";
}

Document load_document(const std::string& path) {
  const std::string text = read_text(path);
  const bool is_json =
      std::filesystem::path(path).extension() == ".json" || (!is_yaml_name(path) && looks_like_json(text));
  return is_json ? parse_hjson(text, path) : parse_yaml(text, path);
}

std::string to_yaml(const nlohmann::ordered_json& value) {
  YAML::Emitter out;
  emit(value, out);
  return std::string(out.c_str()) + "\n";
}

}  // namespace tessera::config
