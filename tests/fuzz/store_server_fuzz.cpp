#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <stdexcept>

#include "tessera/base/error.h"
#include "tessera/base/unique_fd.h"
#include "tessera/comm/store/run_store.h"
#include "tessera/comm/store/store_listener.h"
#include "tessera/comm/store/store_server.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::store_server_fuzz {
namespace {

using namespace std::chrono_literals;

constexpr auto kSecret = "the secret of this test";

// A run's store, and a rank in it.
class Served {
 public:
  Served() : Served(comm::listen_for_ranks("127.0.0.1", 0, /*on_this_host=*/true)) {}

  int port() const { return place_.port; }

  // It still answers.
  void require_service() { rank_.set("key", {1}); }

 private:
  explicit Served(comm::StoreListener listener)
      : place_{.host = "127.0.0.1", .port = listener.port, .secret = kSecret},
        server_(std::move(listener.socket), place_.text(), kSecret, /*ranks=*/1),
        rank_(place_, 5s) {}

  comm::StorePlace place_;
  comm::StoreServer server_;
  comm::RunStore rank_;
};

// The fuzzer's own alarm clock interrupts calls, once a second.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Connects from another address each time: for a minute a port that was used is not free again.
bool connect_to(const UniqueFd& connection, int port) {
  static uint32_t visits = 0;
  sockaddr_in own{}, address{};
  own.sin_family = address.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (++visits & 0xFFFF));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return bind(connection.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0 &&
         (uninterrupted([&] {
            return connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
          }) == 0 ||
          errno == EISCONN);  // it went on while it was interrupted
}

// Says this, and listens until the other end has closed the connection.
void visit(int port, std::string_view bytes) {
  const UniqueFd connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience = {.tv_sec = 5, .tv_usec = 0};
  const linger leave_no_trace = {.l_onoff = 1, .l_linger = 0};
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &leave_no_trace, sizeof(leave_no_trace));
  if (!connect_to(connection, port)) throw std::runtime_error("nobody listens: " + errno_text(errno));
  [[maybe_unused]] const ssize_t sent =
      uninterrupted([&] { return send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
  shutdown(connection.get(), SHUT_WR);
  char heard[4096];
  ssize_t count = 0;
  do {
    count = uninterrupted([&] { return recv(connection.get(), heard, sizeof(heard), 0); });
  } while (count > 0);
  if (count < 0 && errno != ECONNRESET) throw std::runtime_error("the store neither answers nor closes");
}

TESSERA_FUZZ_TARGET(store_server) {
  static Served served;
  visit(served.port(), bytes);
  served.require_service();
}

}  // namespace
}  // namespace tessera::fuzz::store_server_fuzz
