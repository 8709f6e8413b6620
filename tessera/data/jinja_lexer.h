// A Jinja template as pieces: text, and what stands between "{{ }}" and "{% %}" as tokens. White space goes where the
// template says ("-") and where transformers' templates have it go: before a block that begins a line (lstrip_blocks),
// and the line's end after one (trim_blocks). Comments are left out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data::jinja {

struct Token {
  enum class Kind { kName, kText, kWhole, kReal, kSign, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // of kText: what it stands for; of kSign: "==", "(", …
  int64_t whole = 0;
  double real = 0;
  int line = 1;
};

struct Piece {
  enum class Kind { kText, kOutput, kBlock };
  Kind kind = Kind::kText;
  std::string text;           // of kText
  std::vector<Token> tokens;  // of the others; the last one is kEnd
  int line = 1;
};

// What is wrong with a template, and in which line.
struct Mistake {
  std::string what;
  int line = 1;
};

// Throws Mistake.
std::vector<Piece> pieces_of(std::string_view source);

}  // namespace tessera::data::jinja
