#include "tessera/comm/store/run_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/store/bounded_store.h"
#include "tessera/comm/store/handshake.h"
#include "tessera/comm/store/store_listener.h"
#include "tessera/comm/store/store_server.h"
#include "tessera/comm/store/store_texts.h"

namespace tessera::comm::run_store_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr int kRanks = 2;
constexpr int kMostStrangers = 64 + 2 * kRanks;
const std::string kSecret = "the secret of this test";

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

class Served {
 public:
  explicit Served(const std::string& secret = kSecret) {
    StoreListener listener = listen_for_ranks("127.0.0.1", 0, true);
    place_ = {.host = "127.0.0.1", .port = listener.port, .secret = secret, .rank = 1};
    server_ = std::make_shared<StoreServer>(std::move(listener.socket), place_.text(), secret, kRanks);
  }

  const StorePlace& place() const { return place_; }
  void stop() { server_.reset(); }

  c10::intrusive_ptr<c10d::Store> join(milliseconds timeout = seconds(30)) const {
    return c10::make_intrusive<RunStore>(place_, timeout);
  }

  std::string error_of_joining_with(const std::string& secret) const {
    StorePlace other = place_;
    other.secret = secret;
    try {
      RunStore store(other, seconds(5));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  StorePlace place_;
  std::shared_ptr<StoreServer> server_;
};

// A connection that speaks as it likes.
class Stranger {
 public:
  explicit Stranger(const StorePlace& place) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(place.port));
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }

  void say(const std::string& text) { send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL); }

  std::string hear(size_t size) {
    std::string heard(size, '\0');
    size_t got = 0;
    while (got < size) {
      const ssize_t count = recv(socket_.get(), heard.data() + got, size - got, 0);
      if (count <= 0) break;
      got += static_cast<size_t>(count);
    }
    heard.resize(got);
    return heard;
  }

  bool is_dropped(milliseconds within) {
    pollfd polled{socket_.get(), POLLIN, 0};
    char byte = 0;
    return poll(&polled, 1, static_cast<int>(within.count())) > 0 && recv(socket_.get(), &byte, 1, 0) <= 0;
  }

 private:
  UniqueFd socket_;
};

// The same calls on this store and on LibTorch's in memory have the same results.
TEST(RunStore, AnswersAsLibTorchsStores) {
  const Served served;
  const std::vector<c10::intrusive_ptr<c10d::Store>> stores = {served.join(), c10::make_intrusive<c10d::HashStore>()};
  const std::vector<std::function<std::string(c10d::Store&)>> calls = {
      [](auto& store) { return store.set("a", bytes(std::string("\0\xff\n", 3))), store.get_to_str("a"); },
      [](auto& store) { return store.set("a", "again"), store.get_to_str("a"); },
      [](auto& store) { return store.set("empty", ""), store.get_to_str("empty"); },
      [](auto& store) { return std::to_string(store.add("n", 3)); },
      [](auto& store) { return std::to_string(store.add("n", -5)); },
      [](auto& store) { return store.get_to_str("n"); },
      [](auto& store) {
        return std::to_string(store.check({"a", "n"}));
      },
      [](auto& store) {
        return std::to_string(store.check({"a", "nothing"}));
      },
      [](auto& store) { return store.compareSet("c", std::string(), std::string("first")); },
      [](auto& store) { return store.compareSet("c", std::string("other"), std::string("second")); },
      [](auto& store) { return store.compareSet("c", std::string("first"), std::string("second")); },
      [](auto& store) {
        return store.append("log", bytes("one ")), store.append("log", bytes("two")), store.get_to_str("log");
      },
      [](auto& store) {
        store.multiSet({"x", "y"}, {bytes("1"), bytes("2")});
        std::string text;
        for (const auto& value : store.multiGet({"y", "x", "a"})) text.append(value.begin(), value.end()) += ";";
        return text;
      },
      [](auto& store) { return std::to_string(store.deleteKey("x")); },
      [](auto& store) { return std::to_string(store.deleteKey("x")); },
      [](auto& store) { return std::to_string(store.getNumKeys()); },
  };
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i](*stores[0]), calls[i](*stores[1])) << "call " << i;
}

TEST(RunStore, AValueLargerThanASocketsBuffersPasses) {
  const Served served;
  const std::string large(40 << 20, 'x');
  const auto store = served.join();
  store->set("large", large);
  EXPECT_EQ(served.join()->get_to_str("large"), large);
}

TEST(RunStore, AWaitEndsWithTheLastKeyOrItsTime) {
  const Served served;
  const auto store = served.join();
  const auto other = store->clone();
  std::thread setter([&] {
    other->set("second", "2");
    std::this_thread::sleep_for(milliseconds(200));
    other->set("first", "1");
  });
  store->wait({"first", "second"}, seconds(30));
  setter.join();
  EXPECT_TRUE(store->check({"first"}));
  EXPECT_THROW(store->wait({"first", "third"}, milliseconds(50)), c10::DistStoreError);
  EXPECT_EQ(store->get_to_str("first"), "1");  // and the connection is as good as before
}

TEST(RunStore, AStoreThatGoesAwayIsAnErrorOfTheNetwork) {
  Served served;
  const auto store = served.join();
  served.stop();
  EXPECT_THROW(store->get("anything"), c10::DistNetworkError);
}

TEST(StoreTexts, OfEarlierExchangesAreDeleted) {
  const Served served;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&served, rank] {
      const auto store = served.join();
      std::string before;
      for (int round = 0; round < 20; ++round) {
        const std::string name = "round " + std::to_string(round);
        const auto texts = exchange_texts(
            *store, name, rank, kRanks, std::to_string(rank + round),
            [&](const Keys& keys) { store->wait(keys, seconds(30)); }, before);
        EXPECT_THAT(texts, testing::ElementsAre(std::to_string(round), std::to_string(1 + round)));
        before = name;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(served.join()->getNumKeys(), 3);  // two texts and the mark of rank 1, of the last round
}

std::string error_of_starting(c10d::Store& store, milliseconds timeout) {
  try {
    exchange_texts_at_start(store, {"joined", "did not join the run", "a run of 2 ranks"}, 1, kRanks, "here", timeout);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error of ours";
}

TEST(StoreTexts, AtTheStartWhoIsMissedAndAStoreThatWentAwayAreTold) {
  Served served;
  const auto store = served.join();
  EXPECT_THAT(error_of_starting(*store, milliseconds(1'000)), HasSubstr("rank 0 did not join the run within 1 s"));
  std::thread stopper([&] {
    std::this_thread::sleep_for(milliseconds(200));
    served.stop();
  });
  EXPECT_THAT(error_of_starting(*store, seconds(30)), HasSubstr("the run's store is gone: rank 0"));
  stopper.join();
}

TEST(RunStore, WhoLacksTheSecretIsRefused) {
  const Served served;
  EXPECT_THAT(served.error_of_joining_with("another secret entirely"),
              HasSubstr("rank 1 has a secret of the run, and rank 0 another one or none"));
  EXPECT_THAT(served.error_of_joining_with(""), HasSubstr("rank 1 has no secret, and rank 0 another one or none"));
  EXPECT_THAT(Served("").error_of_joining_with(kSecret), HasSubstr("another one or none"));
  EXPECT_EQ(Served("").error_of_joining_with(""), "no error");
}

TEST(RunStore, NothingIsAnsweredBeforeTheSecretIsShown) {
  const Served served;
  served.join()->set("key", "value");
  const Handshake honest(Handshake::End::kClient, "not the secret");
  Stranger liar(served.place());
  liar.say(honest.hello());
  const std::string answer = liar.hear(Handshake::kHelloSize + Handshake::kProofSize);
  EXPECT_THAT(answer, Not(HasSubstr(kSecret)));
  liar.say(answer.substr(Handshake::kHelloSize));  // the server's own proof, thrown back
  liar.say(frame_of({{"do", "read"}, {"keys", {"key"}}, {"at_most", 0}}));
  EXPECT_EQ(liar.hear(1), "");
}

TEST(RunStore, AProofIsOfNoUseInAnotherConnection) {
  const Served served;
  Handshake rank(Handshake::End::kClient, kSecret);
  std::string proof;
  for (const bool replayed : {false, true}) {
    Stranger speaker(served.place());
    speaker.say(rank.hello());
    const std::string answer = speaker.hear(Handshake::kHelloSize + Handshake::kProofSize);
    if (!replayed) {
      ASSERT_TRUE(rank.read_hello(answer.substr(0, Handshake::kHelloSize)));
      proof = rank.proof();
    }
    speaker.say(proof + frame_of({{"do", "add"}, {"key", "n"}, {"amount", 1}}));
    EXPECT_EQ(speaker.hear(1).empty(), replayed);
  }
  EXPECT_EQ(served.join()->get_to_str("n"), "1");
}

TEST(RunStore, GarbageIsDropped) {
  const Served served;
  const auto rank = served.join();
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") + std::string(40, 'x'), std::string(200'000, '\0'),
        std::string(1'000'000, '\xff'), std::string("tessera0") + std::string(64, 'x')}) {
    Stranger stranger(served.place());
    stranger.say(garbage);
    EXPECT_TRUE(stranger.is_dropped(seconds(5)));
    EXPECT_EQ(rank->add(garbage.substr(0, 4), 1), 1);
  }
}

// Frames after the handshake are those of a rank: one that is broken loses its connection, not the store.
TEST(RunStore, WhatIsNoMessageEndsARanksConnectionAlone) {
  const Served served;
  const auto well = served.join();
  for (const std::string& broken :
       {std::string("\xff\xff\xff\xff", 4), std::string("\1\0\0\0\xc1", 5), frame_of({{"do", "fly"}, {"key", "a"}}),
        frame_of({{"do", 1}}), frame_of("set"), frame_of({{"do", "set"}, {"key", "a"}, {"value", "text"}}),
        frame_of({{"do", "wait"}, {"keys", "a"}, {"at_most", 1}})}) {
    Handshake rank(Handshake::End::kClient, kSecret);
    Stranger speaker(served.place());
    speaker.say(rank.hello());
    ASSERT_TRUE(
        rank.read_hello(speaker.hear(Handshake::kHelloSize + Handshake::kProofSize).substr(0, Handshake::kHelloSize)));
    speaker.say(rank.proof() + broken);
    EXPECT_TRUE(speaker.is_dropped(seconds(5))) << broken;
    EXPECT_EQ(well->check({"a"}), false);
  }
}

TEST(RunStore, SilentConnectionsKeepNobodyOut) {
  const Served served;
  const auto rank = served.join();
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 3 * kMostStrangers; ++i) {
    silent.push_back(std::make_unique<Stranger>(served.place()));
    if (i % 2 == 0) silent.back()->say("tess");
  }
  EXPECT_EQ(served.join()->add("n", 1), 1);
  EXPECT_EQ(rank->add("n", 1), 2);
  EXPECT_TRUE(silent.front()->is_dropped(seconds(5)));  // pushed out
  EXPECT_TRUE(silent.back()->is_dropped(seconds(20)));  // its time is over
}

// A rank on a busy host takes a moment between its hello and its proof.
TEST(RunStore, ARankWithAHelloIsNotPushedOutByThoseWithout) {
  const Served served;
  Handshake rank(Handshake::End::kClient, kSecret);
  Stranger slow(served.place());
  slow.say(rank.hello());
  ASSERT_TRUE(
      rank.read_hello(slow.hear(Handshake::kHelloSize + Handshake::kProofSize).substr(0, Handshake::kHelloSize)));
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 3 * kMostStrangers; ++i) silent.push_back(std::make_unique<Stranger>(served.place()));
  EXPECT_TRUE(silent.front()->is_dropped(seconds(5)));  // pushed out
  slow.say(rank.proof() + frame_of({{"do", "add"}, {"key", "n"}, {"amount", 1}}));
  EXPECT_FALSE(slow.is_dropped(seconds(1)));
  EXPECT_TRUE(served.join()->check({"n"}));
}

TEST(RunStore, HellosWithoutAProofKeepNobodyOut) {
  const Served served;
  std::vector<std::unique_ptr<Stranger>> others;
  for (int i = 0; i < 3 * kMostStrangers; ++i) {
    others.push_back(std::make_unique<Stranger>(served.place()));
    others.back()->say(Handshake(Handshake::End::kClient, "another secret").hello());
    others.back()->hear(Handshake::kHelloSize + Handshake::kProofSize);
  }
  EXPECT_EQ(served.join()->add("n", 1), 1);
}

TEST(RunStore, AFloodOfConnectionsKeepsNobodyOut) {
  const Served served;
  const auto rank = served.join();
  std::atomic<bool> over = false;
  std::atomic<int> connections = 0;
  std::thread flood([&] {
    for (; !over || connections < 1000; ++connections) Stranger(served.place()).say(std::string(100, 'x'));
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(rank->add("n", 1), i + 1);
    EXPECT_TRUE(served.join()->check({"n"}));
  }
  over = true;
  flood.join();
  EXPECT_GE(connections, 1000);
}

TEST(RunStore, SomethingThatIsNoStoreIsNamed) {
  const StoreListener other = listen_for_ranks("127.0.0.1", 0, true);
  std::thread answers([&] {
    const UniqueFd taken(accept(other.socket.get(), nullptr, nullptr));
    const std::string page = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    send(taken.get(), page.data(), page.size(), MSG_NOSIGNAL);
    char byte = 0;
    while (recv(taken.get(), &byte, 1, 0) > 0) continue;
  });
  try {
    RunStore store({.host = "127.0.0.1", .port = other.port, .rank = 1}, seconds(5));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is not a run of this version of Tessera"));
  }
  answers.join();
}

TEST(RunStore, AServerThatFallsSilentEndsTheCallAndAllAfterIt) {
  const StoreListener other = listen_for_ranks("127.0.0.1", 0, true);
  std::thread shakes_hands([&] {
    const UniqueFd taken(accept(other.socket.get(), nullptr, nullptr));
    std::string hello(Handshake::kHelloSize, '\0');
    ASSERT_EQ(recv(taken.get(), hello.data(), hello.size(), MSG_WAITALL), static_cast<ssize_t>(hello.size()));
    Handshake server(Handshake::End::kServer, kSecret);
    ASSERT_TRUE(server.read_hello(hello));
    const std::string answer = server.hello() + server.proof();
    send(taken.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    char byte = 0;
    while (recv(taken.get(), &byte, 1, 0) > 0) continue;
  });
  {
    RunStore store({.host = "127.0.0.1", .port = other.port, .secret = kSecret, .rank = 1}, milliseconds(300));
    EXPECT_THROW(store.get("a"), SilentStore);
    EXPECT_THROW(store.add("a", 1), SilentStore);
  }
  shakes_hands.join();
}

}  // namespace
}  // namespace tessera::comm::run_store_test
