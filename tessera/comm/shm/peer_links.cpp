#include "tessera/comm/shm/peer_links.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <vector>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/comm/shm/segment.h"

namespace tessera::comm::shm {
namespace {

constexpr size_t kMostUnheard = 16;  // connections, and one of each rank

struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;
};

// Abstract: the name begins with a zero byte.
Address address_of(const std::string& name) {
  Address address;
  address.socket.sun_family = AF_UNIX;
  TESSERA_INVARIANT(name.size() + 1 < sizeof(address.socket.sun_path));
  std::memcpy(address.socket.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd stream_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.open()) refuse("opening a Unix socket");
  return socket;
}

std::optional<ucred> process_behind(const UniqueFd& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer;
}

UniqueFd open_process(const std::optional<ucred>& process) {
  if (!process || process->pid <= 0) return UniqueFd();
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, process->pid, 0)));
}

// Who sends it, with room for a descriptor beside.
struct FileMessage {
  explicit FileMessage(int32_t& rank) : text{&rank, sizeof(rank)} {
    header.msg_iov = &text;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  FileMessage(const FileMessage&) = delete;

  iovec text;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

void send_file(const UniqueFd& socket, int32_t rank, int file) {
  FileMessage message(rank);
  cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  if (sendmsg(socket.get(), &message.header, MSG_NOSIGNAL) != sizeof(rank)) refuse("passing a file descriptor");
}

// Nothing where what came is no such message.
UniqueFd receive_file(const UniqueFd& socket, int32_t& rank) {
  FileMessage message(rank);
  const ssize_t bytes = recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = bytes < 0 ? nullptr : CMSG_FIRSTHDR(&message.header);
  UniqueFd received;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int file = -1;
    std::memcpy(&file, CMSG_DATA(header), sizeof(file));
    received = UniqueFd(file);  // whatever came with it
  }
  return bytes == sizeof(rank) ? std::move(received) : UniqueFd();
}

// Those of `sockets` that can be read, by their place; waits until there is one.
std::vector<size_t> await_readable(const std::vector<int>& sockets, const Deadline& deadline) {
  std::vector<pollfd> waited;
  for (const int socket : sockets) waited.push_back({.fd = socket, .events = POLLIN, .revents = 0});
  while (true) {
    deadline.check();
    const auto left = static_cast<int>(std::min<int64_t>(deadline.left().count() + 1, 1000));
    const int ready = poll(waited.data(), waited.size(), left);
    if (ready < 0 && errno != EINTR) refuse("waiting for a connection");
    if (ready > 0) break;
  }
  std::vector<size_t> found;
  for (size_t i = 0; i < waited.size(); ++i) {
    if (waited[i].revents != 0) found.push_back(i);
  }
  return found;
}

// Of a process of this user; nothing where it is of another.
UniqueFd accept_own(const UniqueFd& listener) {
  UniqueFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.open()) {
    if (errno != EINTR && errno != ECONNABORTED) refuse("taking a connection");
    return socket;
  }
  const auto sender = process_behind(socket);
  return sender && sender->uid == geteuid() ? std::move(socket) : UniqueFd();
}

std::string random_name(int rank) {
  std::random_device random;
  return fmt::format("tessera-{:08x}{:08x}-{}", random(), random(), rank);
}

}  // namespace

PeerLinks::PeerLinks(int rank) : rank_(rank), name_(random_name(rank)), listener_(stream_socket()) {
  const Address address = address_of(name_);
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address.socket), address.length) != 0 ||
      listen(listener_.get(), SOMAXCONN) != 0) {
    refuse("listening on a Unix socket");
  }
}

// Nobody has to accept for this to succeed: the connection and the message wait in the listener's queue.
void PeerLinks::connect_to(int peer, const std::string& name, int file) {
  Link& link = links_[static_cast<size_t>(peer)];
  link.socket = stream_socket();
  const Address address = address_of(name);
  if (connect(link.socket.get(), reinterpret_cast<const sockaddr*>(&address.socket), address.length) != 0) {
    refuse(fmt::format("connecting to rank {}", peer));
  }
  const auto process = process_behind(link.socket);
  if (!process || process->uid != geteuid()) {
    throw Error(ErrorKind::kMachine, {fmt::format("the link of rank {} is not served by a process of this user", peer),
                                      name, "look which process listens on this Unix socket (ss -xlp)"});
  }
  link.process = open_process(process);
  send_file(link.socket, rank_, file);
}

std::vector<UniqueFd> PeerLinks::exchange_files(const std::vector<std::string>& names, int file,
                                                const Deadline& deadline) {
  const int size = static_cast<int>(names.size());
  links_.resize(names.size());
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank_) connect_to(peer, names[static_cast<size_t>(peer)], file);
  }
  std::vector<UniqueFd> files(names.size());
  std::vector<UniqueFd> unheard;  // connections that have not said yet whose they are
  for (int missing = size - 1; missing > 0;) {
    std::vector<int> sockets;
    for (const UniqueFd& socket : unheard) sockets.push_back(socket.get());
    sockets.push_back(listener_.get());
    for (const size_t at : await_readable(sockets, deadline)) {
      if (at == unheard.size()) {
        unheard.push_back(accept_own(listener_));
        break;
      }
      UniqueFd socket = std::move(unheard[at]);
      int32_t peer = -1;
      UniqueFd received = receive_file(socket, peer);
      if (!received.open() || peer < 0 || peer >= size || files[static_cast<size_t>(peer)].open()) continue;
      files[static_cast<size_t>(peer)] = std::move(received);
      links_[static_cast<size_t>(peer)].accepted = std::move(socket);
      --missing;
    }
    std::erase_if(unheard, [](const UniqueFd& socket) { return !socket.open(); });
    if (unheard.size() > kMostUnheard + names.size()) unheard.erase(unheard.begin());
  }
  listener_.reset();
  return files;
}

bool PeerLinks::is_gone(int rank) {
  constexpr std::chrono::seconds kPatience{2};
  Link& link = links_[static_cast<size_t>(rank)];
  std::array<pollfd, 2> watched{pollfd{.fd = link.socket.get(), .events = POLLIN | POLLRDHUP, .revents = 0},
                                pollfd{.fd = link.process.get(), .events = POLLIN, .revents = 0}};  // -1: ignored
  if (poll(watched.data(), watched.size(), /*timeout=*/0) <= 0) return false;
  if (watched[1].revents != 0 || !link.process.open()) return true;
  if (!link.closed) link.closed = std::chrono::steady_clock::now();
  return std::chrono::steady_clock::now() - *link.closed > kPatience;
}

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code ignored;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", ignored);
  return fmt::format("{} {} user {} {}", boot, network.string(), geteuid(), env_text("TESSERA_HOST").value_or(""));
}

}  // namespace tessera::comm::shm
