#include "tessera/comm/store/run_store.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/comm/store/handshake.h"
#include "tessera/comm/store/store_server.h"
#include "tessera/comm/store/tcp_connection.h"

namespace tessera::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kLongestPause{50};

constexpr milliseconds kSilentAtFirst{10'000};  // ranks do not start at once

struct Words {
  std::string what;
  std::string fix;
};

// `place`: where rank 0 should be.
Words words_of(const Connected& attempt, const StorePlace& place) {
  switch (attempt.obstacle) {
    case Obstacle::kUnknownName:
      return {fmt::format("the name '{}' has no address here: {}", place.host, attempt.reason),
              "check how MASTER_ADDR is written, give it as an address, or add it to /etc/hosts"};
    case Obstacle::kRefused:
      return {fmt::format("no rank 0 listens on {}", place.text()),
              "is rank 0 started, and does it have the same MASTER_ADDR and MASTER_PORT? Look at its output"};
    case Obstacle::kSilence:
      return {
          fmt::format("nothing comes back from {}: a firewall or a route drops what is sent there, or the host is down",
                      place.text()),
          fmt::format("let ranks connect to port {} of that host and to those above 1023 between all hosts, or set "
                      "MASTER_ADDR to its address in a network where they may",
                      place.port)};
    case Obstacle::kNoRoute:
      return {fmt::format("there is no way to {}: {}", place.text(), attempt.reason),
              "check MASTER_ADDR, the routes (ip route get) and the firewalls of both hosts"};
    case Obstacle::kOther:
      break;
  }
  return {attempt.reason, "check that rank 0 is running, and check MASTER_ADDR and MASTER_PORT"};
}

}  // namespace

std::string StorePlace::text() const { return fmt::format("{}:{}", host, port); }

RunStore::RunStore(StorePlace place, milliseconds timeout, std::shared_ptr<StoreServer> server)
    : c10d::Store(timeout), place_(std::move(place)), server_(std::move(server)) {
  connect(steady_clock::now() + timeout);
}

void RunStore::connect(Deadline deadline) {
  const auto begin = steady_clock::now();
  bool said = false;
  Connected connected;
  for (milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    connected = connect_tcp(place_.host, place_.port, deadline);
    if (connected.socket.open()) {
      socket_ = std::move(connected.socket);
      if (shake_hands(deadline)) return;
      connected.reason = "the connection was closed";
    } else if (!connected.may_come) {
      break;
    }
    const auto now = steady_clock::now();
    if (now + pause > deadline) break;
    if (!said && now - begin >= kSilentAtFirst) {
      const Words words = words_of(connected, place_);
      log_warning("{} yet ({}); trying for another {}", words.what, words.fix, format_duration(deadline - now));
      said = true;
    }
    std::this_thread::sleep_for(pause);
  }
  const Words words = words_of(connected, place_);
  throw Error(ErrorKind::kPeer,
              {fmt::format("rank {} could not reach rank 0's rendezvous: {}", place_.rank, words.what), place_.text(),
               words.fix});
}

// False: the other end closed the connection, as a server does that has too many strangers at once.
bool RunStore::shake_hands(Deadline deadline) {
  Handshake handshake(Handshake::End::kClient, place_.secret);
  std::string input;
  const auto read = [&](size_t size) {
    while (input.size() < size) {
      const Step step = receive_some(socket_.get(), input, deadline);
      if (step == Step::kClosed) return false;
      if (step == Step::kDone) continue;
      throw fall_silent(timeout_);
    }
    return true;
  };
  if (send_all(socket_.get(), handshake.hello(), deadline) != Step::kDone) return false;
  if (!read(Handshake::kHelloSize)) return false;
  if (!handshake.read_hello(input.substr(0, Handshake::kHelloSize))) {
    throw Error(ErrorKind::kPeer,
                {"what answers where rank 0 should be is not a run of this version of Tessera", place_.text(),
                 "check MASTER_ADDR and MASTER_PORT, and that all ranks run one version"});
  }
  if (!read(Handshake::kHelloSize + Handshake::kProofSize)) return false;
  if (!handshake.proves(input.substr(Handshake::kHelloSize))) {
    throw Error(ErrorKind::kUsage, {fmt::format("rank {} has {}, and rank 0 another one or none", place_.rank,
                                                place_.secret.empty() ? "no secret" : "a secret of the run"),
                                    place_.text(), "give every rank the same TESSERA_SECRET_FILE (docs/security.md)"});
  }
  return send_all(socket_.get(), handshake.proof(), deadline) == Step::kDone;
}

SilentStore RunStore::fall_silent(milliseconds after) const {
  return SilentStore(
      ErrorKind::kPeer,
      {fmt::format("the run's store, which rank 0 serves, does not answer ({})", format_duration(after)), place_.text(),
       "look whether rank 0 is stopped, and that no other service has its port (MASTER_PORT)"});
}

StoreMessage RunStore::ask(const StoreMessage& request, milliseconds at_most) {
  const Deadline deadline = steady_clock::now() + at_most;
  const std::unique_lock lock(one_at_a_time_, deadline);
  if (!lock.owns_lock() || silent_) throw fall_silent(at_most);
  Step step = send_all(socket_.get(), frame_of(request), deadline);
  while (step == Step::kDone) {
    if (auto answer = take_frame(input_)) return std::move(*answer);
    step = receive_some(socket_.get(), input_, deadline);
  }
  if (step == Step::kClosed) {
    C10_THROW_ERROR(DistNetworkError, "the run's store, which rank 0 serves, is gone: " + place_.text());
  }
  silent_ = true;  // an answer that still comes would be taken for that to the next request
  throw fall_silent(at_most);
}

StoreMessage RunStore::await_keys(const char* what, const std::vector<std::string>& keys, milliseconds at_most) {
  const StoreMessage request = {{"do", what}, {"keys", keys}, {"at_most", at_most.count()}};
  StoreMessage answer = ask(request, at_most + kAnswerTakes);
  if (answer == false) {
    C10_THROW_ERROR(DistStoreError, fmt::format("{} of {} keys were not set within {}", keys.size(), place_.text(),
                                                format_duration(at_most)));
  }
  return answer;
}

c10::intrusive_ptr<c10d::Store> RunStore::clone() { return c10::make_intrusive<RunStore>(place_, timeout_, server_); }

void RunStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask({{"do", "set"}, {"key", key}, {"value", message_of(value)}}, timeout_);
}

std::vector<uint8_t> RunStore::compareSet(const std::string& key, const std::vector<uint8_t>& current,
                                          const std::vector<uint8_t>& wanted) {
  return value_of(
      ask({{"do", "compare_set"}, {"key", key}, {"current", message_of(current)}, {"wanted", message_of(wanted)}},
          timeout_));
}

std::vector<uint8_t> RunStore::get(const std::string& key) { return multiGet({key}).front(); }

int64_t RunStore::add(const std::string& key, int64_t value) {
  return ask({{"do", "add"}, {"key", key}, {"amount", value}}, timeout_);
}

bool RunStore::deleteKey(const std::string& key) { return ask({{"do", "delete"}, {"key", key}}, timeout_); }

bool RunStore::check(const std::vector<std::string>& keys) { return ask({{"do", "check"}, {"keys", keys}}, timeout_); }

int64_t RunStore::getNumKeys() { return ask({{"do", "count"}}, timeout_); }

void RunStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void RunStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  await_keys("wait", keys, timeout);
}

void RunStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  ask({{"do", "append"}, {"key", key}, {"value", message_of(value)}}, timeout_);
}

std::vector<std::vector<uint8_t>> RunStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> values;
  for (const StoreMessage& value : await_keys("read", keys, timeout_)) values.push_back(value_of(value));
  return values;
}

void RunStore::multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) {
  for (size_t i = 0; i < keys.size(); ++i) set(keys[i], values.at(i));
}

}  // namespace tessera::comm
