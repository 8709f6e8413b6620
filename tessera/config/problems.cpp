#include "tessera/config/problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera::config {

void Problems::raise() {
  if (problems_.empty()) return;
  std::stable_sort(problems_.begin(), problems_.end(), [](const Problem& a, const Problem& b) {
    return std::tie(a.place.file, a.place.line, a.place.column) < std::tie(b.place.file, b.place.line, b.place.column);
  });
  const Problem& first = problems_.front();
  if (problems_.size() == 1) throw Error(ErrorKind::kConfig, {first.what, first.place.text(), first.fix});
  std::string what = fmt::format("{} problems in the configuration", problems_.size());
  constexpr size_t kShown = 20;
  for (size_t i = 0; i < std::min(kShown, problems_.size()); ++i) {
    what += fmt::format("\n  {}: {}; {}", problems_[i].place.text(), problems_[i].what, problems_[i].fix);
  }
  if (problems_.size() > kShown) what += fmt::format("\n  and {} more", problems_.size() - kShown);
  throw Error(ErrorKind::kConfig, {what, first.place.text(), "fix each of them as its line says"});
}

}  // namespace tessera::config
