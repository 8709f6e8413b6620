// The "normalizer" of a tokenizer.json.
#include <fmt/format.h>
#include <sodium.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <memory>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/data/bert_normalizer.h"
#include "tessera/data/charsmap.h"
#include "tessera/data/normal_forms.h"
#include "tessera/data/tokenizer_parts.h"
#include "tessera/data/unicode.h"
#include "tessera/data/unicode_regex.h"

namespace tessera::data {
namespace {

using nlohmann::json;

Normalizer normal_form(const icu::Normalizer2* (*instance)(UErrorCode&), const NormalForm& which) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* const form = instance(status);
  TESSERA_INVARIANT(U_SUCCESS(status));
  const auto normalize = [form](std::string text) {
    UErrorCode failed = U_ZERO_ERROR;
    if (form->isNormalizedUTF8(text, failed)) return text;
    std::string result;
    icu::StringByteSink<std::string> sink(&result);
    form->normalizeUTF8(0, text, sink, nullptr, failed);
    TESSERA_INVARIANT(U_SUCCESS(failed));
    return result;
  };
  return {normalize, [which](AlignedText& text) { text.rewrite(normal_form_changes(text.text(), which)); }};
}

std::string utf8_of(std::u32string_view text) {
  std::string bytes;
  append_utf8(text, bytes);
  return bytes;
}

Normalizer by_bert(const BertNormalizerOptions& options) {
  const BertNormalizer normalizer(options);
  return {[normalizer](const std::string& text) { return utf8_of(normalizer.normalize(decode_utf8(text))); },
          [normalizer](AlignedText& text) { normalizer.normalize(text); }};
}

// Calls visit(begin, end), offsets in bytes, of each place that is replaced.
template <class ForEachMatch>
Normalizer replace_each(const ForEachMatch& for_each_match, const std::string& content) {
  return {[=](const std::string& text) {
            std::string result;
            size_t done = 0;
            for_each_match(text, [&](size_t begin, size_t end) {
              result.append(text, done, begin - done).append(content);
              done = end;
            });
            return result.append(text, done);
          },
          [=](AlignedText& text) {
            std::vector<AlignedText::Bytes> matches;
            for_each_match(text.text(), [&](size_t begin, size_t end) { matches.push_back({begin, end}); });
            text.replace(matches, content);
          }};
}

Normalizer replace(const json& part, const std::string& path) {
  const auto content = json_value(part, "content", std::string(), path);
  const json pattern = part.value("pattern", json());
  if (pattern.is_object() && pattern.contains("String")) {
    const auto what = json_value(pattern, "String", std::string(), path);
    return replace_each(
        [what](const std::string& text, const auto& visit) {
          if (what.empty()) return;
          for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) {
            visit(at, at + what.size());
          }
        },
        content);
  }
  const auto regex =
      std::make_shared<const UnicodeRegex>(json_value(pattern, "Regex", std::string("(?!)"), path), path);
  return replace_each([regex](const std::string& text, const auto& visit) { regex->for_each_match(text, visit); },
                      content);
}

Normalizer strip(const json& part, const std::string& path) {
  const bool left = json_value(part, "strip_left", true, path), right = json_value(part, "strip_right", true, path);
  const auto kept = [left, right](const std::string& text) {  // in bytes
    const std::u32string given = decode_utf8(text);
    size_t begin = 0, end = given.size();
    while (left && begin < end && is_whitespace(given[begin])) ++begin;
    while (right && begin < end && is_whitespace(given[end - 1])) --end;
    const std::u32string_view view(given);
    const size_t before = utf8_of(view.substr(0, begin)).size();
    return std::pair(before, before + utf8_of(view.substr(begin, end - begin)).size());
  };
  return {[kept](const std::string& text) {
            const auto [begin, end] = kept(text);
            return text.substr(begin, end - begin);
          },
          [kept](AlignedText& text) {
            const auto [begin, end] = kept(text.text());
            text = text.slice(begin, end);
          }};
}

Normalizer prepend(const std::string& prefix) {
  return {[prefix](std::string text) { return text.empty() ? text : prefix + text; },
          [prefix](AlignedText& text) { text.prepend(prefix); }};
}

// Nothing where it is no base64 (RFC 4648).
std::optional<std::string> base64_bytes(const std::string& text) {
  std::string bytes(text.size(), '\0');
  size_t size = 0;
  const int failed = sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                                       text.size(), nullptr, &size, nullptr, sodium_base64_VARIANT_ORIGINAL);
  if (failed != 0) return std::nullopt;
  bytes.resize(size);
  return bytes;
}

Normalizer in_sequence(const json& parts, const std::string& path) {
  std::vector<Normalizer> steps;
  for (const json& part : parts) {
    if (auto step = make_normalizer(part, path)) steps.push_back(std::move(step));
  }
  return {[steps](std::string text) {
            for (const auto& step : steps) text = step.text(std::move(text));
            return text;
          },
          [steps](AlignedText& text) {
            for (const auto& step : steps) step.aligned(text);
          }};
}

Normalizer precompiled(const json& part, const std::string& path) {
  const auto bytes = base64_bytes(json_value(part, "precompiled_charsmap", std::string(), path));
  if (!bytes) throw Error(ErrorKind::kData, {"the precompiled normalizer is not base64", path, "get the file again"});
  if (bytes->empty()) return in_sequence(json::array(), path);
  const auto map = std::make_shared<const Charsmap>(*bytes, path);
  return {[map](const std::string& text) { return map->normalize(text); },
          [map](AlignedText& text) { map->normalize(text); }};
}

BertNormalizerOptions bert_options(const json& part, const std::string& path) {
  const bool lowercase = json_value(part, "lowercase", true, path);
  return {.clean_text = json_value(part, "clean_text", true, path),
          .handle_chinese_chars = json_value(part, "handle_chinese_chars", true, path),
          .strip_accents = json_value(part, "strip_accents", lowercase, path),
          .lowercase = lowercase};
}

}  // namespace

Normalizer make_normalizer(const json& part, const std::string& path) {
  if (part.is_null()) return {};
  const auto type = json_value(part, "type", std::string(), path);
  if (type == "Sequence") return in_sequence(part.value("normalizers", json::array()), path);
  if (type == "NFC") return normal_form(icu::Normalizer2::getNFCInstance, {.composed = true});
  if (type == "NFD") return normal_form(icu::Normalizer2::getNFDInstance, {});
  if (type == "NFKC") return normal_form(icu::Normalizer2::getNFKCInstance, {.compatible = true, .composed = true});
  if (type == "NFKD") return normal_form(icu::Normalizer2::getNFKDInstance, {.compatible = true});
  if (type == "Replace") return replace(part, path);
  if (type == "Strip") return strip(part, path);
  if (type == "BertNormalizer") return by_bert(bert_options(part, path));
  if (type == "Lowercase") {
    return by_bert({.clean_text = false, .handle_chinese_chars = false, .strip_accents = false, .lowercase = true});
  }
  if (type == "Prepend") return prepend(json_value(part, "prepend", std::string(), path));
  if (type == "Precompiled") return precompiled(part, path);
  throw Error(ErrorKind::kData, {fmt::format("the normalizer '{:.100}' is not supported", type), path,
                                 "supported: Sequence, NFC, NFD, NFKC, NFKD, Replace, Strip, Lowercase, Prepend, "
                                 "BertNormalizer, Precompiled"});
}

}  // namespace tessera::data
