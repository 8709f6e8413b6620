// The tasks of `tessera train`, by name. To add one: a file that makes a TaskType (task.h), with a collator of
// data/collators.h or one of its own, and a line in tasks.cpp; in a program of one's own add_task().
#pragma once

#include "tessera/base/registry.h"
#include "tessera/config/run_file.h"
#include "tessera/train/task.h"

namespace tessera::train {

OpenRegistry<TaskType>& tasks();

// ErrorKind::kConfig, with the nearest of those known, for a task that is not in the table.
const TaskType& task_of(const config::RunFile& run);

TaskType causal_lm_task();       // causal_lm.cpp
TaskType classification_task();  // classification.cpp
TaskType instruction_task();     // instruction_tuning.cpp
TaskType masked_lm_task();       // masked_lm.cpp
TaskType preference_task();      // preference_tuning.cpp
TaskType seq2seq_task();         // seq2seq.cpp

}  // namespace tessera::train
