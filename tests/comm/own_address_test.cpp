#include "tessera/comm/own_address.h"

#include <gtest/gtest.h>

namespace tessera::comm::own_address_test {
namespace {

TEST(OwnAddress, IsTheOneThatLeadsToRank0) {
  const Route own{.own = "10.0.0.2", .far = "10.0.0.1"};
  EXPECT_EQ(own_address(own, {{"10.0.0.1", "10.0.0.1"}, own}), "10.0.0.2");
}

// Debian's /etc/hosts gives a host's own name the address 127.0.1.1.
TEST(OwnAddress, OnRank0sHostIsWhatOtherHostsFound) {
  const Route own{.own = "127.0.0.1", .far = "127.0.1.1"};
  EXPECT_EQ(own_address(own, {own, own, {"10.0.0.2", "10.0.0.1"}, {"10.0.0.3", "10.0.0.1"}}), "10.0.0.1");
}

TEST(OwnAddress, IsNoneWhereAllAreOnOneHost) {
  const Route own{.own = "::1", .far = "::1"};
  EXPECT_EQ(own_address(own, {own, own}), std::nullopt);
}

TEST(OwnAddress, TheRouteToThisHostIsItsLoopback) {
  const auto route = route_to("localhost");
  ASSERT_TRUE(route);
  EXPECT_TRUE(is_loopback(route->own)) << route->own;
  EXPECT_TRUE(is_loopback(route->far)) << route->far;
}

TEST(OwnAddress, NoRouteLeadsToANameThatNobodyHas) { EXPECT_FALSE(route_to("no-such-host.invalid")); }

}  // namespace
}  // namespace tessera::comm::own_address_test
