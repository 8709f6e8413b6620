#include "tessera/base/error.h"
#include "tessera/models/models.h"
#include "tessera/models/sequence_classifier.h"
#include "tessera/plan/census.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::model_config_fuzz {

TESSERA_FUZZ_TARGET(model_config) {
  const TemporaryFolder folder;
  write(folder, "config.json", bytes);
  try {
    plan::read_census(folder.path());  // also of models that cannot be trained
    models::labels_in(models::read_model_config(folder.path()));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInternal) throw;
  }
  const auto read = models::read_model(folder.path(), "MaskedLM");
  read.model->architecture();
}

}  // namespace tessera::fuzz::model_config_fuzz
