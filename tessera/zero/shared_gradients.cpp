#include "tessera/zero/shared_gradients.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::zero {
namespace {

const layout::Holders* several_holders(const NamedParam& param) {
  for (const layout::Holders& holders : param.spec.holders) {
    if (holders.coordinates.size() > 1) return &holders;
  }
  return nullptr;
}

}  // namespace

void sum_over_holders(ShardedModel& model) {
  for (size_t index = 0; index < model.units().size(); ++index) {
    const Unit& unit = *model.units()[index];
    if (!unit.trainable()) continue;
    const layout::Holders* const holders = several_holders(unit.params().front());
    const bool alike = std::all_of(unit.params().begin(), unit.params().end(), [&](const NamedParam& param) {
      const layout::Holders* const others = several_holders(param);
      return (others == nullptr) == (holders == nullptr) &&
             (others == nullptr || others->coordinates == holders->coordinates);
    });
    if (!alike) {
      throw Error(ErrorKind::kUsage,
                  {"the unit '" + unit.name() + "' has parameters that other ranks hold and some that they do not",
                   "step", "make a module that announces its forward (nn::UnitModule) of what several ranks hold"});
    }
    if (holders == nullptr) continue;
    model.reducer().add_over(index, model.holders_group(*holders));
  }
}

}  // namespace tessera::zero
