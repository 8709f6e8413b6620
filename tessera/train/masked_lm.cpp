// The task mlm: masked language modelling (Devlin et al. 2018, section 3.1).
#include "tessera/train/tasks.h"
#include "tessera/train/text_data.h"

namespace tessera::train {

TaskType masked_lm_task() {
  return {.head = "MaskedLM",
          .read = [](const DataSource& source) { return read_collated_text(source, "mlm"); },
          .target_share = [](const config::RunFile& run) { return run.data.mlm_probability; },
          .metrics = [](const config::RunFile&) { return std::vector<Metric>{perplexity()}; },
          .keeps_tokens = true};
}

}  // namespace tessera::train
