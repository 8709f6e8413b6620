// The task clm: causal language modelling, in which each token is predicted from those before it.
#include "tessera/data/collators.h"
#include "tessera/train/tasks.h"
#include "tessera/train/text_data.h"

namespace tessera::train {

TaskType causal_lm_task() {
  return {.head = "CausalLM",
          .read =
              [](const DataSource& source) {
                const data::Packing packing = data::packing_of(source.run.data, data::Packing::kFill);
                return read_collated_text(source, "clm",
                                          {.ends_with_eos = true, .is_whole = packing == data::Packing::kFill});
              },
          .metrics = [](const config::RunFile&) { return std::vector<Metric>{perplexity()}; },
          .keeps_tokens = true};
}

}  // namespace tessera::train
