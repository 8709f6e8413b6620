#include "tessera/data/collators.h"

namespace tessera::data {

OpenRegistry<MakeCollator>& collators() {
  static OpenRegistry<MakeCollator> table(
      "collator", {
                      {"mlm", "masks tokens at random, which are the targets (Devlin et al. 2018)", make_mlm_collator},
                  });
  return table;
}

}  // namespace tessera::data
