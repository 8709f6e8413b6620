#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tessera/base/deadline.h"
#include "tessera/base/error.h"
#include "tessera/base/unique_fd.h"
#include "tessera/comm/shm/peer_links.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::links_fuzz {
namespace {

using namespace std::chrono_literals;
using comm::shm::PeerLinks;

// What a process of the same user sends that is no rank: any bytes, with a descriptor beside them or without.
void send_to(const std::string& name, std::string message, bool with_descriptor) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return;
  iovec text{message.data(), message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{.msg_iov = &text, .msg_iovlen = 1};
  if (with_descriptor) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const int file = socket.get();
    CMSG_FIRSTHDR(&header)->cmsg_level = SOL_SOCKET;
    CMSG_FIRSTHDR(&header)->cmsg_type = SCM_RIGHTS;
    CMSG_FIRSTHDR(&header)->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&header)), &file, sizeof(file));
  }
  [[maybe_unused]] const ssize_t sent = sendmsg(socket.get(), &header, MSG_NOSIGNAL);
}

TESSERA_FUZZ_TARGET(links) {
  PeerLinks own(0), peer(1);
  const std::vector<std::string> names = {own.name(), peer.name()};
  for (const std::string& part : parts_of(bytes, 4)) {
    if (!part.empty()) send_to(own.name(), part.substr(1), part[0] % 2 == 1);
  }
  std::thread other([&] {
    try {
      peer.exchange_files(names, 0, Deadline(1s, "a peer"));
    } catch (const Error&) {  // what it thinks of the other is not looked at
    }
  });
  try {
    own.exchange_files(names, 0, Deadline(1s, "a peer"));
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
}

}  // namespace
}  // namespace tessera::fuzz::links_fuzz
