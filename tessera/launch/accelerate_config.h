// The configuration of `accelerate launch` (`accelerate config` writes it, in YAML or JSON): how many processes on
// which machines, and what a program that uses Accelerate finds in its environment.
//
//   const AccelerateConfig config = load_accelerate_config("zero3.yaml");
//   config.num_processes, config.variables …
//
// Keys, defaults and variables are those of Accelerate 1.15 (commands/config/config_args.py, commands/launch.py,
// utils/launch.py), which tests compare. Accelerate refuses an unknown key, a type of run, a precision or a launcher
// that it does not know, fewer than two devices for MULTI_GPU, and a DeepSpeed file beside keys that the file has to
// say. Beyond that, what it would pass over in silence is refused here by name: keys of a block that nothing reads,
// processes that the machines or the devices cannot share, a run of several machines that cannot meet. So is what
// Tessera does not have: FSDP, TPUs, Megatron-LM, SageMaker, fp8, torch.compile.
//
// All problems of a file are one ErrorKind::kConfig, each with file:line:column. Nothing is started; values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/launch/environment.h"

namespace tessera::launch {

struct AccelerateConfig {
  enum class Runs {
    kProgram,    // NO: one process
    kOnCpus,     // MULTI_CPU
    kOnDevices,  // MULTI_GPU
    kDeepSpeed,  // DEEPSPEED
  };
  // How DeepSpeed runs reach other machines, and only where there are several.
  struct DeepSpeed {
    std::string hostfile = {};
    std::string inclusion_filter = {};  // of the two at most one
    std::string exclusion_filter = {};
    std::string multinode_launcher = "pdsh";  // "standard": this command runs on every machine, as torchrun's does
  };

  Runs runs = Runs::kProgram;
  std::optional<int> num_processes = {};      // on all machines together; none: the command line has to say
  int num_machines = 1;                       // of which each has equally many processes
  int machine_rank = 0;                       // of this machine
  std::string main_process_ip = {};           // empty: not said
  std::optional<int> main_process_port = {};  // 0: a free one; none: 29500
  bool same_network = false;
  bool use_cpu = false;
  std::vector<std::string> gpu_ids = {};  // indices or UUIDs; empty: all
  DeepSpeed deepspeed = {};

  // Where there are several machines: a hostfile names them, and this command reaches them or is given on each (nossh).
  bool uses_hostfile() const { return runs == Runs::kDeepSpeed && deepspeed.multinode_launcher != "standard"; }

  // What Accelerate's launcher sets for the program over what it inherits, but for what depends on the machine or is of
  // any launcher: the ranks' places (MASTER_ADDR and MASTER_PORT too), OMP_NUM_THREADS, and PYTHONPATH, to which it
  // adds the current folder in DeepSpeed's runs. Also what its programs read and its launcher loses on the way from the
  // file: folders for NVMe, and enable_cpu_affinity.
  Environment variables = {};

  std::vector<std::string> warnings = {};  // one line each, with its place; for the caller to log
};

AccelerateConfig load_accelerate_config(const std::string& path);

}  // namespace tessera::launch
