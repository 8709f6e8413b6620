// For test_bleu_parity.py: corpus BLEU of texts beside their references.
//
//   bleu_tool FILE.json [PARTS]
//
// FILE holds a list of [text, reference]. Prints a JSON object: the score, the tallies, and the tokens of each text.
// With PARTS the pairs are dealt out to as many tallies, which are added up.
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/data/bleu.h"

using namespace tessera::data;

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    std::ifstream file(argv[1]);
    const auto pairs = nlohmann::json::parse(file).get<std::vector<std::vector<std::string>>>();
    std::vector<BleuTallies> parts(argc > 2 ? std::stoul(argv[2]) : 1);
    std::vector<std::vector<std::string>> tokens;
    for (size_t i = 0; i < pairs.size(); ++i) {
      parts[i % parts.size()] += bleu_tallies(pairs[i].at(0), pairs[i].at(1));
      tokens.push_back(bleu_tokens(pairs[i][0]));
    }
    BleuTallies all;
    for (const BleuTallies& part : parts) all += part;
    const nlohmann::json result{{"score", all.score()},
                                {"ngrams", all.ngrams},
                                {"matches", all.matches},
                                {"tokens", all.tokens},
                                {"reference_tokens", all.reference_tokens},
                                {"texts", tokens}};
    std::puts(result.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
