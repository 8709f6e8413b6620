// The "decoder" of a tokenizer.json: tokens to a text.
#include <fmt/format.h>

#include <charconv>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/data/tokenizer_parts.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::string>;

std::string joined(const Tokens& tokens) { return std::accumulate(tokens.begin(), tokens.end(), std::string()); }

// Ill-formed sequences become U+FFFD.
std::string well_formed(const std::string& bytes) {
  if (!find_ill_formed_utf8(bytes)) return bytes;
  std::string text;
  append_utf8(decode_utf8(bytes), text);
  return text;
}

// Of "<0xE2>".
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned byte = 0;
  const char* const digits = token.data() + 3;
  if (std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) return std::nullopt;
  return static_cast<char>(byte);
}

// Neighbouring bytes become the characters that they are, or U+FFFD each where they are none.
Tokens with_bytes(const Tokens& tokens) {
  Tokens result;
  std::string bytes;
  const auto end_bytes = [&] {
    if (bytes.empty()) return;
    if (!find_ill_formed_utf8(bytes)) {
      result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), "\uFFFD");
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_of(token)) {
      bytes += *byte;
    } else {
      end_bytes();
      result.push_back(token);
    }
  }
  end_bytes();
  return result;
}

DecodeTokens replace_in_tokens(const json& part, const std::string& path) {
  // A decoder's replacement is that of a normalizer, token by token.
  const Normalizer replace_in = make_normalizer(part, path);
  return [replace_in](Tokens tokens) {
    for (std::string& token : tokens) token = replace_in.text(std::move(token));
    return tokens;
  };
}

// Up to `start` of the character at a token's beginning and `stop` at its end go.
DecodeTokens strip_tokens(const json& part, const std::string& path) {
  const auto content = json_value(part, "content", std::string(" "), path);
  const auto start = json_value<int64_t>(part, "start", 0, path), stop = json_value<int64_t>(part, "stop", 0, path);
  return [=](Tokens tokens) {
    for (std::string& token : tokens) {
      for (int64_t i = 0; i < start && !content.empty() && token.starts_with(content); ++i)
        token.erase(0, content.size());
      for (int64_t i = 0; i < stop && !content.empty() && token.ends_with(content); ++i) {
        token.resize(token.size() - content.size());
      }
    }
    return tokens;
  };
}

DecodeTokens marks_as_spaces(const json& part, const std::string& path) {
  const auto mark = json_value(part, "replacement", std::string("▁"), path);
  const bool by_flag = json_value(part, "add_prefix_space", true, path);
  const bool prepended = json_value(part, "prepend_scheme", std::string(by_flag ? "always" : "never"), path) != "never";
  return [=](Tokens tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string text;
      for (size_t at = 0; at < tokens[i].size();) {
        const bool is_mark = !mark.empty() && tokens[i].compare(at, mark.size(), mark) == 0;
        if (!is_mark) text += tokens[i][at];
        if (is_mark && !(prepended && i == 0)) text += ' ';
        at += is_mark ? mark.size() : 1;
      }
      tokens[i] = text;
    }
    return tokens;
  };
}

// "</w>" ends a word.
DecodeTokens end_marks(const json& part, const std::string& path) {
  const auto suffix = json_value(part, "suffix", std::string("</w>"), path);
  return [suffix](Tokens tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      for (size_t at = token.find(suffix); !suffix.empty() && at != std::string::npos; at = token.find(suffix, at)) {
        token.replace(at, suffix.size(), i + 1 < tokens.size() ? " " : "");
      }
    }
    return tokens;
  };
}

DecodeTokens decoders_in_sequence(const json& parts, const std::string& path) {
  std::vector<DecodeTokens> steps;
  for (const json& part : parts) steps.push_back(make_decoder(part, path));
  return [steps](Tokens tokens) {
    for (const auto& step : steps) tokens = step(std::move(tokens));
    return tokens;
  };
}

}  // namespace

DecodeTokens make_decoder(const json& part, const std::string& path) {
  if (part.is_null()) {
    return [](Tokens tokens) {
      for (size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, " ");
      return tokens;
    };
  }
  const auto type = json_value(part, "type", std::string(), path);
  if (type == "Sequence") return decoders_in_sequence(part.value("decoders", json::array()), path);
  if (type == "ByteLevel") return [](const Tokens& tokens) { return Tokens{well_formed(joined(tokens))}; };
  if (type == "Fuse") return [](const Tokens& tokens) { return Tokens{joined(tokens)}; };
  if (type == "ByteFallback") return with_bytes;
  if (type == "Replace") return replace_in_tokens(part, path);
  if (type == "Strip") return strip_tokens(part, path);
  if (type == "Metaspace") return marks_as_spaces(part, path);
  if (type == "BPEDecoder") return end_marks(part, path);
  throw Error(ErrorKind::kData, {fmt::format("the decoder '{:.100}' is not supported", type), path,
                                 "supported: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, "
                                 "BPEDecoder"});
}

}  // namespace tessera::data
