#include "tessera/base/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "tessera/base/input_file.h"

namespace tessera {
namespace {

using nlohmann::json;

// What the parser itself does not refuse.
struct Refused {
  std::string what;
};

// Called for each block, list and name.
class Watch {
 public:
  template <class Event, class Json>
  bool operator()(int depth, Event event, const Json& value) {
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= kDeepestNesting)
        throw Refused{fmt::format("it is nested more than {} levels deep", kDeepestNesting)};
      if (event == Event::object_start) names_.emplace_back();
    } else if (event == Event::object_end) {
      names_.pop_back();
    } else if (event == Event::key) {
      const auto& name = value.template get_ref<const std::string&>();
      if (!names_.back().insert(name).second) throw Refused{fmt::format("it names '{}' twice", name.substr(0, 100))};
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> names_;  // of the blocks that are open
};

std::string place_in(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte == 0 ? 0 : byte - 1, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t last = before.rfind('\n');
  const size_t column = before.size() - (last == before.npos ? 0 : last + 1) + 1;
  return text.find('\n') == text.npos ? fmt::format("column {}", column)
                                      : fmt::format("line {}, column {}", line, column);
}

template <class Json>
Json parsed(std::string_view text, const JsonOrigin& origin) {
  std::string what;
  try {
    return Json::parse(text.begin(), text.end(),
                       [watch = Watch()](int depth, typename Json::parse_event_t event, Json& value) mutable {
                         return watch(depth, event, value);
                       });
  } catch (const Refused& refused) {
    what = refused.what;
  } catch (const json::parse_error& error) {
    what = fmt::format("it is not JSON: a mistake at {}", place_in(text, error.byte));
  } catch (const json::exception&) {
    what = "it has a number that is too large";
  }
  throw Error(origin.kind, {what, origin.where, origin.fix});
}

}  // namespace

json parse_json(std::string_view text, const JsonOrigin& origin) { return parsed<json>(text, origin); }

nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonOrigin& origin) {
  return parsed<nlohmann::ordered_json>(text, origin);
}

json read_json_file(const std::filesystem::path& path) {
  json content = parse_json(read_input_file(path), {.where = path.string()});
  if (content.is_object()) return content;
  throw Error(ErrorKind::kData, {"not a JSON object", path.string(), "check the file, or get it again"});
}

bool is_utf8(const std::string& text) {
  try {
    return !json(text).dump().empty();
  } catch (const json::exception&) {
    return false;
  }
}

}  // namespace tessera
