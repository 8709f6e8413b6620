#include "tessera/comm/store/store_messages.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::comm {
namespace {

constexpr size_t kLengthSize = 4;
constexpr int kDeepestMessage = 4;  // a message holds lists of values

// Stops nlohmann's reader, which calls itself for each level, at one that no message has.
struct LevelsOfMessage : nlohmann::json_sax<StoreMessage> {
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return ++levels <= kDeepestMessage; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return --levels >= 0; }
  bool start_array(size_t) override { return ++levels <= kDeepestMessage; }
  bool end_array() override { return --levels >= 0; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  int levels = 0;
};

uint32_t length_in(const std::string& bytes) {
  uint32_t length = 0;
  for (size_t i = 0; i < kLengthSize; ++i) length |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return length;
}

}  // namespace

std::string frame_of(const StoreMessage& message) {
  const std::vector<uint8_t> packed = StoreMessage::to_msgpack(message);
  if (packed.size() > kLargestStoreMessage) {
    throw Error(ErrorKind::kUsage, {fmt::format("a message of {} is too large for the run's store, which takes {}",
                                                format_bytes(packed.size()), format_bytes(kLargestStoreMessage)),
                                    "", "send it as a tensor"});
  }
  std::string frame;
  frame.reserve(kLengthSize + packed.size());
  for (size_t i = 0; i < kLengthSize; ++i) frame += static_cast<char>(packed.size() >> (8 * i));
  return frame.append(packed.begin(), packed.end());
}

std::optional<StoreMessage> take_frame(std::string& input) {
  if (input.size() < kLengthSize) return std::nullopt;
  const uint32_t length = length_in(input);
  const Error no_message(ErrorKind::kPeer, {"what came over a connection of the run's store is no message", "", ""});
  if (length > kLargestStoreMessage) throw no_message;
  if (input.size() - kLengthSize < length) return std::nullopt;
  const auto begin = input.begin() + kLengthSize;
  LevelsOfMessage levels;
  if (!StoreMessage::sax_parse(begin, begin + length, &levels, StoreMessage::input_format_t::msgpack)) throw no_message;
  StoreMessage message = StoreMessage::from_msgpack(begin, begin + length);
  input.erase(0, kLengthSize + length);
  return message;
}

StoreMessage message_of(const StoreValue& value) { return StoreMessage::binary(value); }

StoreValue value_of(const StoreMessage& message) { return message.get_binary(); }

}  // namespace tessera::comm
