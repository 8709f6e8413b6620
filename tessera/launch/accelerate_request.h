// A launch by Accelerate's configuration (accelerate_config.h): `tessera launch --config zero3.yaml train.py`.
//
// What the command line says wins, field by field; the file fills in the rest:
//   one machine            num_processes ranks here, on gpu_ids
//   machines, DeepSpeed    the hosts of deepspeed_hostfile, by deepspeed_multinode_launcher, of which nossh has this
//                          command given on every machine
//   machines, otherwise    this command is given on every machine, and machine_rank says which this is
// Every rank finds AccelerateConfig::variables in its environment, in DeepSpeed's runs also the current folder in
// PYTHONPATH, and no rank gets --local_rank.
#pragma once

#include <string>

#include "tessera/launch/launch_request.h"

namespace tessera::launch {

// `given`: what the command line says. Logs the file's warnings. ErrorKind::kConfig for what is wrong in the file,
// ErrorKind::kUsage where the command line contradicts it, or has to say what the file leaves out.
LaunchRequest accelerate_request(const LaunchRequest& given, const std::string& path);

}  // namespace tessera::launch
