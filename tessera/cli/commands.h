// The subcommands of `tessera`, one file each. Each function registers its options with CLI11; its callback runs the
// command, which throws Error or sets `exit_code`. main.cpp alone turns errors into exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace tessera::cli {

void add_config_command(CLI::App& app, int& exit_code);
void add_launch_command(CLI::App& app, int& exit_code);
void add_estimate_command(CLI::App& app, int& exit_code);
// `program`: as the user called it, for commands that are printed.
void add_train_command(CLI::App& app, const std::string& program, int& exit_code);
void add_checkpoint_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app);
void add_env_command(CLI::App& app);
void add_check_command(CLI::App& app, int& exit_code);
void add_generate_command(CLI::App& app, const std::string& program, int& exit_code);
void add_chat_command(CLI::App& app, const std::string& program, int& exit_code);
void add_init_model_command(CLI::App& app);

}  // namespace tessera::cli
