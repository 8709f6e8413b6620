#include "tessera/engine/same_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"

namespace tessera::engine {
namespace {

// A line a parameter, in the order in which the ranks will exchange them.
std::string description_of(const ModelTree& tree) {
  std::string text;
  for (const zero::ModuleParams& module : tree.modules) {
    for (const zero::NamedParam& param : module.params) {
      text += fmt::format("'{}' of shape [{}], {}{}, in the unit '{}'\n", param.name(),
                          fmt::join(param.full_shape(), ", "), param.trainable() ? "trained" : "frozen",
                          param.has_values() || param.shape ? "" : ", without values", module.name);
    }
  }
  return text;
}

std::string next_line(std::istringstream& lines) {
  std::string line;
  return std::getline(lines, line) ? line : "no further parameter";
}

[[noreturn]] void refuse(int rank, const std::string& own, const std::string& of_rank_0) {
  std::istringstream lines(own), expected(of_rank_0);
  std::string line, wanted;
  int64_t index = 0;
  do {
    line = next_line(lines);
    wanted = next_line(expected);
    ++index;
  } while (line == wanted);
  throw Error(ErrorKind::kUsage,
              {fmt::format("rank {} has another model than rank 0: its parameter {} is {}; rank 0's is {}", rank, index,
                           line, wanted),
               "initialize", "build the same model on every rank, with the same parameters in the same order"});
}

}  // namespace

void require_same_model(const ModelTree& tree, comm::Group& world) {
  if (world.size() == 1) return;
  const std::string own = description_of(tree);
  const std::vector<std::string> hashes = world.exchange_texts(fmt::format("{:016x}", fnv1a(own)), "the ranks' models");
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const auto& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  const std::vector<std::string> all = world.exchange_texts(own, "the ranks' parameters");
  const auto rank = static_cast<size_t>(other - hashes.begin());
  refuse(static_cast<int>(rank), all[rank], all[0]);
}

}  // namespace tessera::engine
