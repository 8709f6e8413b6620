#include "tessera/comm/store/handshake.h"

#include <sodium.h>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr std::string_view kGreeting = "tessera1";  // the last is the version of all that follows
static_assert(Handshake::kProofSize == crypto_auth_hmacsha256_BYTES);

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

}  // namespace

Handshake::Handshake(End own, const std::string& secret) : own_(own), own_hello_(kHelloSize, '\0') {
  TESSERA_INVARIANT(sodium_init() >= 0);
  static_assert(sizeof(key_) == crypto_auth_hmacsha256_KEYBYTES && sizeof(key_) == crypto_hash_sha256_BYTES);
  crypto_hash_sha256(key_.data(), bytes_of(secret), secret.size());
  randombytes_buf(own_hello_.data(), own_hello_.size());
  kGreeting.copy(own_hello_.data(), kGreeting.size());
}

bool Handshake::read_hello(std::string_view hello) {
  if (hello.size() != kHelloSize || !hello.starts_with(kGreeting)) return false;
  other_hello_ = hello;
  return true;
}

bool Handshake::proves(std::string_view proof) const {
  const std::string expected = proof_of(own_ == End::kServer ? End::kClient : End::kServer);
  return proof.size() == kProofSize && sodium_memcmp(proof.data(), expected.data(), kProofSize) == 0;
}

std::string Handshake::proof_of(End end) const {
  const bool is_server = own_ == End::kServer;
  const std::string text = (end == End::kServer ? "server" : "client") + (is_server ? own_hello_ : other_hello_) +
                           (is_server ? other_hello_ : own_hello_);
  std::string proof(kProofSize, '\0');
  crypto_auth_hmacsha256(reinterpret_cast<unsigned char*>(proof.data()), bytes_of(text), text.size(), key_.data());
  return proof;
}

}  // namespace tessera::comm
