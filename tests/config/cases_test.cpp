// Runs every case of tests/config/cases/*.yaml; a new case needs no compiler. A case is a map:
//
//   name         a sentence
//   ds_config    the text of a ds_config, or
//   file         a file under tests/config/configs, or
//   run_file     the text of a run file; its `deepspeed` may be the object itself
//   set          list of overrides (run_file only)
//   world_size   data-parallel ranks; default 1
//   auto         what the door knows: learning_rate, micro_batch, accumulation, hidden_size, warmup_num_steps,
//                total_num_steps
//   lenient      true: as the Python door asks
//   error        text, or a list of texts, that the error must contain; without it the case must succeed
//   expect       key -> resolved value
//   warnings     list of texts, one for each warning, in any order; without it warnings are not looked at
//   not_yet      list of the keys that are not supported; default none
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/config/run_file.h"
#include "tessera/config/yaml_file.h"
#include "tests/support/built_places.h"

namespace tessera::config::cases_test {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(test::source_folder()) / "tests/config";

struct Case {
  std::string label;  // file and position
  Json json;
};

void PrintTo(const Case& test, std::ostream* out) { *out << test.json.at("name"); }

std::vector<Case> all_cases() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder / "cases")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Case> cases;
  for (const auto& file : files) {
    const Document document = load_document(file.string());
    for (size_t i = 0; i < document.value.size(); ++i) {
      const Place place = document.place(Pointer() / i);
      cases.push_back({file.stem().string() + "_line" + std::to_string(place.line), document.value.at(i)});
    }
  }
  return cases;
}

template <class T>
void take(const Json& from, const char* key, std::optional<T>& to) {
  if (from.contains(key)) to = from.at(key).get<T>();
}

DsConfigInput input_of(const Json& test) {
  DsConfigInput input;
  input.data_parallel_size = test.value("world_size", 1);
  input.unknown_keys_are_errors = !test.value("lenient", false);
  const Json known = test.value("auto", Json::object());
  take(known, "learning_rate", input.auto_values.learning_rate);
  take(known, "micro_batch", input.auto_values.micro_batch);
  take(known, "accumulation", input.auto_values.accumulation);
  take(known, "hidden_size", input.auto_values.hidden_size);
  take(known, "warmup_num_steps", input.auto_values.warmup_num_steps);
  take(known, "total_num_steps", input.auto_values.total_num_steps);
  input.auto_values.leave_unknown = known.value("leave_unknown", false);
  return input;
}

DsConfig run(const Json& test) {
  const DsConfigInput input = input_of(test);
  if (test.contains("file")) return load_ds_config((kFolder / "configs" / test.at("file")).string(), input);
  if (test.contains("ds_config")) return parse_ds_config(test.at("ds_config").get<std::string>(), "ds.json", input);
  const auto folder = std::filesystem::temp_directory_path() / ("tessera_config_case_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "run.yaml").string();
  std::ofstream(path) << test.at("run_file").get<std::string>();
  struct Cleanup {
    std::filesystem::path folder;
    ~Cleanup() { std::filesystem::remove_all(folder); }
  } cleanup{folder};
  const RunFile run_file = load_run_file(path, test.value("set", std::vector<std::string>()));
  DsConfig config = resolve_ds_config(run_file, input);
  // Both tables in one list, for `expect`.
  config.keys.insert(config.keys.begin(), run_file.keys.begin(), run_file.keys.end());
  return config;
}

std::vector<std::string> texts(const Json& value) {
  return value.is_array() ? value.get<std::vector<std::string>>() : std::vector<std::string>{value.get<std::string>()};
}

class ConfigCase : public testing::TestWithParam<Case> {};

TEST_P(ConfigCase, Holds) {
  const Json& test = GetParam().json;
  SCOPED_TRACE(test.at("name").get<std::string>());
  if (test.contains("error")) {
    try {
      run(test);
      FAIL() << "was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(exit_code(error.kind()), 2);
      for (const std::string& text : texts(test.at("error"))) EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
    return;
  }
  const DsConfig config = run(test);
  const Json expected = test.value("expect", Json::object());
  for (const auto& item : expected.items()) {
    const auto found = std::find_if(config.keys.begin(), config.keys.end(),
                                    [&](const ResolvedKey& key) { return key.path == item.key(); });
    ASSERT_NE(found, config.keys.end()) << item.key();
    EXPECT_EQ(found->value, item.value()) << item.key();
  }
  if (test.contains("warnings")) {
    EXPECT_EQ(config.warnings.size(), test.at("warnings").size()) << testing::PrintToString(config.warnings);
    for (const std::string& text : texts(test.at("warnings"))) {
      EXPECT_THAT(config.warnings, testing::Contains(testing::HasSubstr(text)));
    }
  }
  if (test.contains("run_file")) return;
  std::vector<std::string> missing;
  for (const NotYet& key : not_yet_supported(config)) missing.push_back(key.path);
  EXPECT_THAT(missing, testing::UnorderedElementsAreArray(texts(test.value("not_yet", Json::array()))));
}

INSTANTIATE_TEST_SUITE_P(All, ConfigCase, testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.label; });

}  // namespace
}  // namespace tessera::config::cases_test
