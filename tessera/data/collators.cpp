#include "tessera/data/collators.h"

namespace tessera::data {
namespace {

constexpr Registry<MakeCollator>::Entry kCollators[] = {
    {"clm", "predicts each token from those before it in its document", make_clm_collator},
    {"mlm", "masks tokens at random, which are the targets (Devlin et al. 2018)", make_mlm_collator},
};

}  // namespace

Packing packing_of(const config::RunFile::Data& options, Packing automatic) {
  switch (options.packing) {
    case config::RunFile::Data::Packing::kNone:
      return Packing::kNone;
    case config::RunFile::Data::Packing::kFill:
      return Packing::kFill;
    case config::RunFile::Data::Packing::kFit:
      return Packing::kFit;
    case config::RunFile::Data::Packing::kAuto:
      break;
  }
  return automatic;
}

Padding padding_of(const config::RunFile::Data& options, const Tokenizer& tokenizer) {
  return {.length = options.padding == config::RunFile::Data::Padding::kMaxLength ? options.max_length : 0,
          .id = tokenizer.special_ids().pad.value_or(0)};
}

Registry<MakeCollator> collators() { return {"collator", kCollators}; }

}  // namespace tessera::data
