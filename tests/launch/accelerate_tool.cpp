// Prints what launch/accelerate_config.h makes of a file, as JSON, for test_accelerate.py; an error as {"error": …}.
#include <iostream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/launch/accelerate_config.h"

int main(int argc, char** argv) {
  using tessera::launch::AccelerateConfig;
  if (argc != 2) return 2;
  nlohmann::json said;
  try {
    const AccelerateConfig config = tessera::launch::load_accelerate_config(argv[1]);
    said = {
        {"num_processes", config.num_processes ? nlohmann::json(*config.num_processes) : nlohmann::json()},
        {"num_machines", config.num_machines},
        {"machine_rank", config.machine_rank},
        {"main_process_ip", config.main_process_ip},
        {"main_process_port", config.main_process_port ? nlohmann::json(*config.main_process_port) : nlohmann::json()},
        {"multinode_launcher", config.deepspeed.multinode_launcher},
        {"hostfile", config.deepspeed.hostfile},
        {"gpu_ids", config.gpu_ids},
        {"variables", config.variables},
        {"warnings", config.warnings}};
  } catch (const tessera::Error& error) {
    said = {{"error", error.what()}};
  }
  std::cout << said.dump() << "\n";
}
