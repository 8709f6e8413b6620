// Our side of bench/tokenizing: `tokenizing_rate FOLDER FILE` waits for lines, and answers each with the tokens of the
// file's lines and the seconds in which they were read and tokenised by a tokenizer that has seen nothing yet.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::printf("ready\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto tokenizer = tessera::data::load_tokenizer(argv[1]);
    const auto begin = std::chrono::steady_clock::now();
    const tessera::data::TokenizedDataset dataset(*tokenizer, {.files = {argv[2]}, .max_length = 1 << 20});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%lld,%.9f\n", static_cast<long long>(dataset.total_tokens()), seconds.count());
    std::fflush(stdout);
  }
  return 0;
}
