// How the two ends of a connection to the run's store make sure of each other before anything else is read.
//
// Protocol:
//   1) (client)  its hello: a greeting, and 32 random bytes
//   2) (server)  its own hello, and its proof: HMAC-SHA-256, under the run's secret, of "server" and both hellos
//   3) (client)  its proof: the same of "client"
// Neither end sends the secret, and a proof is of no use in another connection. A run without a secret goes through the
// same steps with an empty one: that keeps out what is no rank by mistake, not who wants to be taken for one.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace tessera::comm {

class Handshake {
 public:
  enum class End { kServer, kClient };
  static constexpr size_t kHelloSize = 40;  // bytes
  static constexpr size_t kProofSize = 32;  // bytes

  Handshake(End own, const std::string& secret);

  const std::string& hello() const { return own_hello_; }

  // Of kHelloSize bytes; false: the other end speaks something else.
  bool read_hello(std::string_view hello);

  // Once the other end's hello is read.
  std::string proof() const { return proof_of(own_); }
  bool proves(std::string_view proof) const;  // of kProofSize bytes

 private:
  std::string proof_of(End end) const;

  End own_;
  std::array<unsigned char, 32> key_;
  std::string own_hello_;
  std::string other_hello_;
};

}  // namespace tessera::comm
