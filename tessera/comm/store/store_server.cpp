#include "tessera/comm/store/store_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <list>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/comm/store/handshake.h"
#include "tessera/comm/store/store_requests.h"
#include "tessera/comm/store/tcp_connection.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kStrangersTime{10};
constexpr std::chrono::minutes kBetweenLines{1};  // of the log, about those that were refused
constexpr milliseconds kWithoutDescriptors{100};  // until the next attempt to take a connection
constexpr int kTakenAtOnce = 64;

std::string numeric_address(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

// One end of a connection, as far as it has come.
struct Visitor {
  enum class Stage { kHello, kProof, kRank };
  struct Wait {
    std::vector<std::string> keys;
    size_t found = 0;  // of them, from the first on
    bool reads = false;
    steady_clock::time_point until;
  };

  Visitor(UniqueFd taken, std::string from, const std::string& secret)
      : socket(std::move(taken)), address(std::move(from)), handshake(Handshake::End::kServer, secret) {}

  bool is_stranger() const { return stage != Stage::kRank; }

  UniqueFd socket;
  std::string address;
  Handshake handshake;
  Stage stage = Stage::kHello;
  steady_clock::time_point came = steady_clock::now();
  std::string input = {};
  std::string output = {};
  std::optional<Wait> wait = {};
};

// One line at once for the first that is refused, and one a minute for all that follow.
class Refusals {
 public:
  explicit Refusals(std::string place) : place_(std::move(place)) {}
  ~Refusals() { say_count(); }

  void add(const std::string& address, const std::string& reason) {
    if (said_ == steady_clock::time_point{}) {
      log_warning("refused a connection from {} to the run's store, {}: {}", address, place_, reason);
      said_ = steady_clock::now();
      return;
    }
    ++unsaid_;
    if (steady_clock::now() - said_ > kBetweenLines) say_count();
  }

 private:
  void say_count() {
    if (unsaid_ == 0) return;
    log_warning("refused another {} to the run's store, {}", count_of(unsaid_, "connection"), place_);
    said_ = steady_clock::now();
    unsaid_ = 0;
  }

  std::string place_;
  steady_clock::time_point said_{};
  int64_t unsaid_ = 0;
};

}  // namespace

class StoreServer::Thread {
 public:
  Thread(UniqueFd listener, std::string place, std::string secret, int ranks)
      : listener_(std::move(listener)),
        stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        secret_(std::move(secret)),
        most_strangers_(64 + 2 * static_cast<size_t>(ranks)),
        refusals_(std::move(place)) {
    if (!stop_.open()) throw Error(ErrorKind::kMachine, {"eventfd: " + errno_text(errno), "the run's store", ""});
    fcntl(listener_.get(), F_SETFL, fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
    thread_ = std::thread([this] { serve(); });
  }

  ~Thread() {
    const uint64_t one = 1;
    stopping_ = true;
    if (write(stop_.get(), &one, sizeof(one)) < 0) log_debug("eventfd: {}", errno_text(errno));
    thread_.join();
  }

 private:
  using Visitors = std::list<Visitor>;

  void serve() {
    while (!stopping_) {
      std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {takes_at_ <= now_ ? listener_.get() : -1, POLLIN, 0}};
      for (const Visitor& each : visitors_) {
        polled.push_back({each.socket.get(), static_cast<short>(each.output.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      }
      poll(polled.data(), polled.size(), pause());
      now_ = steady_clock::now();
      auto visitor = visitors_.begin();
      for (size_t i = 2; i < polled.size(); ++i) {
        const auto each = visitor++;
        if (polled[i].revents == 0) continue;
        attend(each, polled[i].revents);
      }
      answer_waits();
      send_away_the_late();
      if ((polled[1].revents & POLLIN) != 0) take_connections();
    }
  }

  // Until there is something to do without anybody's asking.
  int pause() const {
    auto next = now_ + std::chrono::hours(1);
    if (takes_at_ > now_) next = std::min(next, takes_at_);
    for (const Visitor& each : visitors_) {
      if (each.is_stranger()) next = std::min(next, each.came + kStrangersTime);
      if (each.wait) next = std::min(next, each.wait->until);
    }
    const auto left = std::chrono::ceil<milliseconds>(next - steady_clock::now()).count();
    return static_cast<int>(std::max<int64_t>(left, 0));
  }

  void take_connections() {
    for (int taken = 0; taken < kTakenAtOnce; ++taken) {
      sockaddr_storage address = {};
      socklen_t length = sizeof(address);
      UniqueFd socket(
          accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.open()) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        if (!push_out_a_stranger()) takes_at_ = now_ + kWithoutDescriptors;
        return;
      }
      const int on = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
      if (strangers_ >= most_strangers_) push_out_a_stranger();
      visitors_.emplace_back(std::move(socket), numeric_address(address, length), secret_);
      ++strangers_;
    }
  }

  // The first that came without a hello, as a rank on a busy host takes a moment for its proof; but of all, where half
  // of them have said hello and prove nothing.
  bool push_out_a_stranger() {
    const auto says_nothing = [](const Visitor& each) { return each.stage == Visitor::Stage::kHello; };
    const auto silent = static_cast<size_t>(std::count_if(visitors_.begin(), visitors_.end(), says_nothing));
    const auto first = std::find_if(visitors_.begin(), visitors_.end(), [&](const Visitor& each) {
      return 2 * silent >= most_strangers_ ? says_nothing(each) : each.is_stranger();
    });
    if (first == visitors_.end()) return false;
    refuse(first, "it did not show that it is a rank before too many others came");
    return true;
  }

  void send_away_the_late() {
    for (auto each = visitors_.begin(); each != visitors_.end();) {
      const auto visitor = each++;
      if (visitor->is_stranger() && now_ >= visitor->came + kStrangersTime) {
        refuse(visitor, "it did not show that it is a rank within " + format_duration(kStrangersTime));
      }
    }
  }

  void forget(Visitors::iterator visitor) {
    if (visitor->is_stranger()) --strangers_;
    visitors_.erase(visitor);
  }

  void refuse(Visitors::iterator visitor, const std::string& reason) {
    refusals_.add(visitor->address, reason);
    forget(visitor);
  }

  void attend(Visitors::iterator visitor, short events) {
    if ((events & POLLOUT) != 0 && !send_output(*visitor)) return forget(visitor);
    if ((events & ~POLLOUT) == 0) return;
    const Step step = receive_some(visitor->socket.get(), visitor->input, now_);
    if (step == Step::kLate) return;
    if (step == Step::kClosed) return see_off(visitor);
    try {
      const bool stays = visitor->is_stranger() ? hear_stranger(visitor) : hear_rank(*visitor);
      if (stays && !send_output(*visitor)) forget(visitor);
    } catch (const Error& error) {
      refuse(visitor, error.report().what);
    } catch (const std::exception&) {  // of the JSON library, or of the values that are not what it takes them for
      refuse(visitor, "it asks for what no rank of this version asks for");
    }
  }

  // It has closed the connection. A rank does once it is done; who says nothing looks whether somebody listens.
  void see_off(Visitors::iterator visitor) {
    if (visitor->stage == Visitor::Stage::kProof) return refuse(visitor, "it does not have the run's secret");
    return visitor->is_stranger() && !visitor->input.empty() ? refuse(visitor, "it is no rank") : forget(visitor);
  }

  // False: it is refused, and gone.
  bool hear_stranger(Visitors::iterator visitor) {
    using Stage = Visitor::Stage;
    std::string& input = visitor->input;
    if (visitor->stage == Stage::kHello) {
      if (input.size() < Handshake::kHelloSize) return true;
      if (!visitor->handshake.read_hello(input.substr(0, Handshake::kHelloSize))) {
        refuse(visitor, "it is no rank");
        return false;
      }
      visitor->output = visitor->handshake.hello() + visitor->handshake.proof();
      visitor->stage = Stage::kProof;
      input.erase(0, Handshake::kHelloSize);
    }
    if (input.size() < Handshake::kProofSize) return true;
    if (!visitor->handshake.proves(input.substr(0, Handshake::kProofSize))) {
      refuse(visitor, "it does not have the run's secret");
      return false;
    }
    input.erase(0, Handshake::kProofSize);
    visitor->stage = Stage::kRank;
    --strangers_;
    hear_rank(*visitor);
    return true;
  }

  bool hear_rank(Visitor& visitor) {
    while (auto request = take_frame(visitor.input)) {
      const std::string what = request->at("do");
      if (what != "wait" && what != "read") {
        visitor.output += frame_of(answer_of(*request, *values_));
        continue;
      }
      const int64_t at_most = std::clamp<int64_t>(request->at("at_most").get<int64_t>(), 0, INT32_MAX);
      visitor.wait = {.keys = request->at("keys").get<std::vector<std::string>>(),
                      .reads = what == "read",
                      .until = steady_clock::now() + milliseconds(at_most)};
    }
    return true;
  }

  bool is_over(Visitor::Wait& wait) {
    while (wait.found < wait.keys.size() && values_->check({wait.keys[wait.found]})) ++wait.found;
    if (wait.found < wait.keys.size()) return false;
    if (values_->check(wait.keys)) return true;
    wait.found = 0;  // one was deleted in the meantime
    return false;
  }

  void answer_waits() {
    for (auto each = visitors_.begin(); each != visitors_.end();) {
      const auto visitor = each++;
      if (!visitor->wait) continue;
      const bool over = is_over(*visitor->wait);
      if (!over && visitor->wait->until > now_) continue;
      const auto answer = over && visitor->wait->reads ? read_from(*values_, visitor->wait->keys) : StoreMessage(over);
      visitor->output += frame_of(answer);
      visitor->wait.reset();
      if (!send_output(*visitor)) forget(visitor);
    }
  }

  // As much as goes without waiting. False: the other end is gone.
  static bool send_output(Visitor& visitor) {
    while (!visitor.output.empty()) {
      const ssize_t sent = send(visitor.socket.get(), visitor.output.data(), visitor.output.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      visitor.output.erase(0, static_cast<size_t>(sent));
    }
    return true;
  }

  UniqueFd listener_;
  UniqueFd stop_;
  std::string secret_;
  size_t most_strangers_;
  Refusals refusals_;
  c10::intrusive_ptr<c10d::Store> values_ = c10::make_intrusive<c10d::HashStore>();
  Visitors visitors_;  // in the order in which they came
  size_t strangers_ = 0;
  steady_clock::time_point now_ = steady_clock::now();
  steady_clock::time_point takes_at_{};  // connections again, once there are descriptors
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

StoreServer::StoreServer(UniqueFd listener, std::string place, const std::string& secret, int ranks)
    : thread_(std::make_unique<Thread>(std::move(listener), std::move(place), secret, ranks)) {}

StoreServer::~StoreServer() = default;

}  // namespace tessera::comm
