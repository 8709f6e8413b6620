// The secret by which the ranks of one run know each other (comm/store/handshake.h; docs/security.md).
//
// A launcher makes one for the ranks of its host and hands it on in TESSERA_SECRET, which only their own user can read.
// For ranks that several launchers start, the user writes one into a file of their own: TESSERA_SECRET_FILE.
#pragma once

#include <string>

namespace tessera {

// From TESSERA_SECRET or the file that TESSERA_SECRET_FILE names; empty where neither is set. ErrorKind::kUsage: both
// are set, the secret has fewer than 16 characters, or others than its owner may read or write the file.
std::string run_secret();

// 64 hexadecimal digits from the kernel's source of randomness.
std::string make_run_secret();

}  // namespace tessera
