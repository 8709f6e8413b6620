#include "tessera/data/collators.h"

namespace tessera::data {
namespace {

constexpr Registry<MakeCollator>::Entry kCollators[] = {
    {"mlm", "masks tokens at random, which are the targets (Devlin et al. 2018)", make_mlm_collator},
};

}  // namespace

Registry<MakeCollator> collators() { return {"collator", kCollators}; }

}  // namespace tessera::data
