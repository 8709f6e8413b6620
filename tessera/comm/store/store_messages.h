// What goes over a connection to the run's store once its ends know each other: frames, each the length of a message
// (4 bytes, little endian) and the message in MessagePack. A request is an object:
//
//   {"do": "set", "key": K, "value": V}          {"do": "check" or "count", "keys": [K, …]}
//   {"do": "add", "key": K, "amount": N}         {"do": "append", "key": K, "value": V}
//   {"do": "delete", "key": K}                   {"do": "compare_set", "key": K, "current": V, "wanted": V}
//   {"do": "wait" or "read", "keys": [K, …], "at_most": milliseconds}
//
// Values are binary. The answer is what c10d::Store's function of that name returns, alone (null for nothing); to a
// wait that its keys do not end in time, false; to "read", the values.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::comm {

using StoreMessage = nlohmann::json;
using StoreValue = std::vector<uint8_t>;

inline constexpr uint32_t kLargestStoreMessage = 256U << 20;  // bytes

std::string frame_of(const StoreMessage& message);

// Takes a frame off the front of `input` once it is whole. ErrorKind::kPeer: what is there is none.
std::optional<StoreMessage> take_frame(std::string& input);

StoreMessage message_of(const StoreValue& value);
StoreValue value_of(const StoreMessage& message);

}  // namespace tessera::comm
