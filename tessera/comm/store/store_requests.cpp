#include "tessera/comm/store/store_requests.h"

#include "tessera/base/error.h"

namespace tessera::comm {

StoreMessage answer_of(const StoreMessage& request, c10d::Store& values) {
  const std::string what = request.at("do");
  if (what == "count") return values.getNumKeys();
  if (what == "check") return values.check(request.at("keys").get<std::vector<std::string>>());
  const std::string key = request.at("key");
  if (what == "delete") return values.deleteKey(key);
  if (what == "add") return values.add(key, request.at("amount"));
  if (what == "compare_set") {
    return message_of(values.compareSet(key, value_of(request.at("current")), value_of(request.at("wanted"))));
  }
  if (what == "set") {
    values.set(key, value_of(request.at("value")));
    return nullptr;
  }
  if (what == "append") {
    values.append(key, value_of(request.at("value")));
    return nullptr;
  }
  throw Error(ErrorKind::kPeer, {"a rank asks the run's store to '" + what + "', which it does not know", "", ""});
}

StoreMessage read_from(c10d::Store& values, const std::vector<std::string>& keys) {
  StoreMessage read = StoreMessage::array();
  for (const StoreValue& value : values.multiGet(keys)) read.push_back(message_of(value));
  return read;
}

}  // namespace tessera::comm
