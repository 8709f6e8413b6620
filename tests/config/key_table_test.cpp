// Walks the tables themselves, so a new row is tested by being there.
#include "tessera/config/key_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/config/key_check.h"
#include "tessera/config/print.h"
#include "tests/support/built_places.h"

namespace tessera::config::key_table_test {
namespace {

std::vector<Key> both_tables() {
  std::vector<Key> keys(ds_config_keys().begin(), ds_config_keys().end());
  keys.insert(keys.end(), run_file_keys().begin(), run_file_keys().end());
  return keys;
}

const Key* row(std::span<const Key> table, std::string_view path) {
  for (const Key& key : table) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

TEST(KeyTable, EveryRowHasItsBlockAndNoneIsThereTwice) {
  for (const auto table : {ds_config_keys(), run_file_keys()}) {
    std::set<std::string> seen;
    for (const Key& key : table) {
      EXPECT_TRUE(seen.insert(std::string(key.path) + " " + std::string(key.notes.when)).second) << key.path;
      const size_t dot = key.path.rfind('.');
      if (dot == std::string_view::npos) continue;
      const Key* block = row(table, key.path.substr(0, dot));
      ASSERT_NE(block, nullptr) << key.path;
      EXPECT_EQ(block->kind.type, Type::kObject) << key.path;
      EXPECT_LT(block, &key) << key.path << " comes before its block";
    }
  }
}

TEST(KeyTable, EveryAliasNamesARowAndEveryRemovedKeySaysWhy) {
  for (const Key& key : both_tables()) {
    if (key.status == Status::kAlias || key.status == Status::kDeprecated) {
      const Key* target = row(ds_config_keys(), key.notes.instead);
      ASSERT_NE(target, nullptr) << key.path;
      EXPECT_NE(target->status, Status::kAlias) << key.path;
    }
    EXPECT_TRUE(key.status != Status::kRemoved || !key.notes.instead.empty()) << key.path;
    EXPECT_TRUE(key.status == Status::kNotYet || key.notes.supported.empty()) << key.path;
  }
}

// A default must pass the check that a user's value has to pass.
TEST(KeyTable, EveryDefaultIsAValueOfItsKey) {
  for (const Key& key : ds_config_keys()) {
    const Json value = default_of(key);
    if (value.is_null() || key.kind.type == Type::kObject || key.status == Status::kAlias ||
        key.status == Status::kDeprecated || key.status == Status::kRemoved) {
      continue;
    }
    Document document{"defaults", Json::object(), {}};
    if (!key.notes.when.empty()) {
      const std::string block(key.path.substr(0, key.path.find('.')));
      document.set(pointer_to(block + ".type"), split_choices(key.notes.when).front(), {});
    }
    document.set(pointer_to(key.path), value, {});
    KeyCheck check{.table = ds_config_keys()};
    check_keys(document, check);
    try {
      check.problems.raise();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("'" + std::string(key.path) + "' is ")))
          << error.what();
    }
    EXPECT_THAT(check.warnings, testing::IsEmpty()) << key.path;
  }
}

// Whatever stands in a key's place, the answer is a configuration or an Error.
TEST(KeyTable, AnyValueOfAnyKeyIsAcceptedOrRefusedInOrder) {
  const std::vector<Json> values = {nullptr,
                                    true,
                                    false,
                                    0,
                                    -1,
                                    3,
                                    1.5,
                                    1e300,
                                    "",
                                    "x",
                                    "auto",
                                    "-5",
                                    "[",
                                    Json::array(),
                                    Json::object(),
                                    {1, "x"},
                                    {{"x", 1}},
                                    {{"enabled", "auto"}}};
  for (const Key& key : ds_config_keys()) {
    for (const Json& value : values) {
      for (const bool strict : {true, false}) {
        Document document{"odd", {{"train_batch_size", 4}}, {}};
        if (!key.notes.when.empty()) {
          const std::string block(key.path.substr(0, key.path.find('.')));
          document.set(pointer_to(block + ".type"), split_choices(key.notes.when).front(), {});
        }
        document.set(pointer_to(key.path), value, {});
        try {
          not_yet_supported(parse_ds_config(document, {.unknown_keys_are_errors = strict}));
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kConfig) << key.path << " = " << value << "\n" << error.what();
        } catch (const std::exception& error) {
          ADD_FAILURE() << key.path << " = " << value << "\n" << error.what();
        }
      }
    }
  }
}

// Typos --------------------------------------------------------------------------------------------------------------

// One letter left out, added or replaced, or two neighbours swapped.
bool one_edit_apart(const std::string& a, const std::string& b) {
  if (a.size() > b.size()) return one_edit_apart(b, a);
  if (b.size() - a.size() > 1) return false;
  const size_t at = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  if (a.size() < b.size()) return a.substr(at) == b.substr(at + 1);
  if (a.substr(at + 1) == b.substr(at + 1)) return true;
  return at + 1 < a.size() && a[at] == b[at + 1] && a[at + 1] == b[at] && a.substr(at + 2) == b.substr(at + 2);
}

std::set<std::string> typos_of(const std::string& name) {
  std::set<std::string> typos;
  for (size_t i = 0; i < name.size(); ++i) typos.insert(name.substr(0, i) + name.substr(i + 1));
  for (size_t i = 0; i + 1 < name.size(); ++i) {
    std::string swapped = name;
    std::swap(swapped[i], swapped[i + 1]);
    typos.insert(swapped);
  }
  typos.erase(name);
  typos.erase("");
  return typos;
}

void expect_refused(std::span<const Key> table, const Key& key, const std::string& name, const std::string& typo) {
  const Pointer at = pointer_to(key.path).parent_pointer();
  Document document{"typo.json", Json::object(), {}};
  if (!key.notes.when.empty()) {
    document.set(Pointer() / std::string(key.path.substr(0, key.path.find('.'))) / "type",
                 split_choices(key.notes.when).front(), {});
  }
  document.set(at / typo, 1, {"typo.json", 7, 3});
  KeyCheck check{.table = table};
  check_keys(document, check);
  try {
    check.problems.raise();
    FAIL() << dotted(at / typo) << " was accepted";
  } catch (const Error& error) {
    const std::string text = error.what(), unknown = "unknown key '" + dotted(at / typo) + "'", mean = "did you mean '";
    const size_t found = text.find(unknown);
    ASSERT_NE(found, std::string::npos) << text;
    EXPECT_THAT(text, testing::HasSubstr("typo.json:7:3"));
    const size_t start = text.find(mean, found);
    ASSERT_NE(start, std::string::npos) << text;
    const std::string suggested =
        text.substr(start + mean.size(), text.find('\'', start + mean.size()) - start - mean.size());
    EXPECT_TRUE(suggested == name || one_edit_apart(typo, suggested)) << typo << " -> " << suggested;
  }
}

TEST(KeyTable, ATypoInAnyKeyIsRefusedWithTheKeyThatWasMeant) {
  for (const auto table : {ds_config_keys(), run_file_keys()}) {
    for (const Key& key : table) {
      const std::string name = pointer_to(key.path).back();
      for (const std::string& typo : typos_of(name)) {
        const Pointer typo_at = pointer_to(key.path).parent_pointer() / typo;
        if (row(table, dotted(typo_at)) == nullptr) expect_refused(table, key, name, typo);
      }
    }
  }
}

TEST(KeyTable, TheDocumentedPageIsTheTable) {
  std::ifstream file(test::source_folder() + "/docs/config.md");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == config_page()) << "run: tessera config keys --markdown > docs/config.md";
}

}  // namespace
}  // namespace tessera::config::key_table_test
