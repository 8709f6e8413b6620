// The memory of a rank goes to processes of its own user alone. Needs root, to be another user.
#include "tessera/comm/shm/peer_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <list>
#include <string>
#include <vector>

#include "tessera/base/deadline.h"
#include "tessera/base/error.h"

namespace tessera::comm::shm::peer_links_test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr uid_t kNobody = 65534;

struct Address {
  explicit Address(const std::string& name) {
    socket.sun_family = AF_UNIX;
    std::memcpy(socket.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&socket); }

  sockaddr_un socket{};
  socklen_t length = 0;
};

// A process of another user; its exit code is what `body` returns.
class OtherUser {
 public:
  explicit OtherUser(const std::function<int(int ready)>& body) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(100);
      _exit(body(ends[1]));
    }
    close(ends[1]);
    char ready = 0;
    EXPECT_EQ(read(ends[0], &ready, 1), 1);
    close(ends[0]);
  }
  int exit_code() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WEXITSTATUS(status);
  }

 private:
  pid_t pid_;
};

class PeerLinksOfTwoUsers : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
    file_ = memfd_create("mine", MFD_CLOEXEC);
  }
  void TearDown() override { close(file_); }

  std::string failure(PeerLinks& links, const std::string& peer) const {
    try {
      links.exchange_files({links.name(), peer}, file_, Deadline(1s, "the links"));
    } catch (const Error& error) {
      return error.what();
    }
    return "they were linked";
  }

  int file_ = -1;
};

TEST_F(PeerLinksOfTwoUsers, ASocketOfAnotherUserGetsNoMemory) {
  const std::string name = "tessera-test-" + std::to_string(getpid());
  const OtherUser other([&](int ready) {
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    const Address address(name);
    if (bind(listener, address.get(), address.length) != 0 || listen(listener, 1) != 0) return 101;
    if (write(ready, "+", 1) != 1) return 102;
    const int accepted = accept(listener, nullptr, nullptr);
    char bytes[64];
    return recv(accepted, bytes, sizeof(bytes), 0) > 0 ? 1 : 0;  // a file comes with bytes
  });
  {
    PeerLinks links(0);
    EXPECT_THAT(failure(links, name), HasSubstr("the link of rank 1 is not served by a process of this user"));
  }
  EXPECT_EQ(other.exit_code(), 0);
}

TEST_F(PeerLinksOfTwoUsers, WhatAnotherUserSendsIsNotMapped) {
  PeerLinks links(0), peer(1);
  const std::string name = links.name();
  const OtherUser other([&](int ready) {
    const int connected = socket(AF_UNIX, SOCK_STREAM, 0);
    const Address address(name);
    if (connect(connected, address.get(), address.length) != 0) return 101;
    const int32_t rank = 1;
    if (send(connected, &rank, sizeof(rank), 0) != sizeof(rank) || write(ready, "+", 1) != 1) return 102;
    char byte = 0;
    return recv(connected, &byte, 1, 0) > 0 ? 1 : 0;  // it was closed
  });
  EXPECT_NE(failure(links, peer.name()), "they were linked");
  EXPECT_EQ(other.exit_code(), 0);
}

int open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

// Of this user, and no rank: it says nothing, or not a rank's number, with a descriptor beside it.
class Stranger {
 public:
  explicit Stranger(const std::string& name) : socket_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    const Address address(name);
    EXPECT_EQ(connect(socket_, address.get(), address.length), 0);
  }
  ~Stranger() { close(socket_); }

  void pass_a_descriptor_with(std::string text) const {
    iovec part{text.data(), text.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &socket_, sizeof(socket_));
    EXPECT_EQ(sendmsg(socket_, &message, MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }

 private:
  int socket_;
};

TEST(PeerLinks, StrangersNeitherHoldUpNorLeaveDescriptors) {
  PeerLinks links(0), peer(1);
  const std::vector<std::string> names = {links.name(), peer.name()};
  std::list<Stranger> strangers;
  for (int i = 0; i < 30; ++i) strangers.emplace_back(links.name());
  strangers.front().pass_a_descriptor_with("x");
  strangers.back().pass_a_descriptor_with(std::string("\7\0\0\0", 4));
  const int before = open_descriptors();
  const int file = memfd_create("mine", MFD_CLOEXEC);
  {
    std::future<std::vector<UniqueFd>> of_peer =
        std::async(std::launch::async, [&] { return peer.exchange_files(names, file, Deadline(20s, "rank 0")); });
    const std::vector<UniqueFd> of_links = links.exchange_files(names, file, Deadline(20s, "rank 1"));
    EXPECT_TRUE(of_links[1].open());
    EXPECT_TRUE(of_peer.get()[0].open());
  }
  close(file);
  // Of each end the listener is closed, and there are two connections.
  EXPECT_EQ(open_descriptors(), before - 2 + 2 * 2 + 2 * (1 /* the process behind it */));
}

}  // namespace
}  // namespace tessera::comm::shm::peer_links_test
