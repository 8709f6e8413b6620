// Our side of bench/offload: for each line "write" or "read" on stdin moves the whole buffer to or from the file, past
// the page cache, and prints the seconds that it took.
//
//   offload_io FILE BYTES BLOCK_BYTES DEPTH THREADS
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "tessera/storage/aligned_buffer.h"
#include "tessera/storage/io_queue.h"

int main(int argc, char** argv) {
  using namespace tessera::storage;
  if (argc != 6) return 2;
  const size_t bytes = std::stoull(argv[2]);
  const IoFile file{open(argv[1], O_RDWR | O_DIRECT | O_CLOEXEC), argv[1]};
  if (file.fd < 0) return 2;
  const AlignedBuffer buffer(bytes);
  for (size_t at = 0; at < bytes; ++at) buffer.data()[at] = static_cast<char>(at * 2654435761U >> 13);
  IoQueue queue({.block_bytes = std::stoull(argv[3]), .depth = std::stoi(argv[4]), .threads = std::stoi(argv[5])});
  std::printf("%s\n", queue.engine());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto begin = std::chrono::steady_clock::now();
    line == "write" ? queue.start_write(file, buffer.data(), bytes, 0)
                    : queue.start_read(file, buffer.data(), bytes, 0);
    queue.wait_all();
    std::printf("%.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    std::fflush(stdout);
  }
  return 0;
}
