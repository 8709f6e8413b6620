#include "tessera/train/tasks.h"

namespace tessera::train {

OpenRegistry<TaskType>& tasks() {
  static OpenRegistry<TaskType> table(
      "task", {
                  {"classification", "a label for each text or pair of texts", classification_task()},
                  {"clm", "causal language modelling", causal_lm_task()},
                  {"sft", "tuning on instructions: the answers of conversations", instruction_task()},
                  {"dpo", "to prefer one answer to another (DPO)", preference_task()},
                  {"mlm", "masked language modelling", masked_lm_task()},
                  {"seq2seq", "one text from another, by an encoder-decoder", seq2seq_task()},
              });
  return table;
}

void add_task(const char* name, const char* summary, TaskType task) { tasks().add({name, summary, task}); }

const TaskType& task_of(const config::RunFile& run) {
  return tasks().table().find(run.task, run.name + ", task", ErrorKind::kConfig).make;
}

}  // namespace tessera::train
