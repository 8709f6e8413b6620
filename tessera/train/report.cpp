#include "tessera/train/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>

#include "tessera/base/env.h"
#include "tessera/base/format.h"
#include "tessera/base/shell.h"
#include "tessera/layout/mesh_shape.h"

namespace tessera::train {
namespace fs = std::filesystem;

namespace {

std::string best_by(const config::RunFile& run) {
  return run.training.best_by.empty() ? "eval_loss" : run.training.best_by;
}

std::string headline(const config::RunFile& run, const TrainerReport& report) {
  const std::string steps = count_of(report.steps, "step");
  if (report.out_of_patience) {
    return fmt::format("stopped after {}: {} without a better {}", steps, count_of(run.training.patience, "evaluation"),
                       best_by(run));
  }
  if (report.interrupted) return fmt::format("stopped after {}", steps);
  if (report.trained > 0) return fmt::format("done after {}", steps);
  return fmt::format("nothing to do: the run has already taken {} (training.max_steps or epochs in {})", steps,
                     run.name);
}

std::string held_out_line(const config::RunFile& run, const TrainerReport& report) {
  const auto text = [&](const HeldOutLoss& loss) {
    return loss.step == report.steps ? fmt::format("{:.4f} after", loss.loss)
           : loss.step == 0          ? fmt::format("{:.4f} before", loss.loss)
                                     : fmt::format("{:.4f} after step {}", loss.loss, loss.step);
  };
  std::string line = text(*report.first);
  if (report.last->step != report.first->step) line += ", " + text(*report.last);
  if (report.best) {
    const std::string by = run.training.best_by.empty() ? "" : run.training.best_by + " ";
    line += fmt::format("; best {}{:.4f} after step {}", by, report.best->value, report.best->step);
  }
  return line;
}

std::string percent(double part) { return fmt::format("{:.0f} %", 100 * part); }

// "1.2 MB to 1.5 MB a step from each rank, which waited 3 % to 8 % of the time"
std::string traffic_of(const GroupTraffic& group) {
  const auto range = [](const std::string& least, const std::string& most) {
    return least == most ? least : fmt::format("{} to {}", least, most);
  };
  const auto bytes = [](double count) { return format_bytes(static_cast<uint64_t>(std::llround(count))); };
  return fmt::format("{} a step from each rank, which waited {} of the time",
                     range(bytes(group.least_sent), bytes(group.most_sent)),
                     range(percent(group.least_waited), percent(group.most_waited)));
}

// The command that started this run, as a shell takes it; empty where another launcher started the ranks, of which
// nothing is known here.
std::string command_of(const RunOptions& options, size_t ranks) {
  std::vector<std::string> words = {options.program, "train", options.run_file};
  if (env_int("TESSERA_NPROC") == static_cast<int64_t>(ranks)) {
    words.insert(words.end(), {"--nproc", std::to_string(ranks)});
  } else if (ranks > 1) {
    return "";
  }
  return shell_command(words);
}

std::string settings_of(const RunOptions& options, bool with_goal) {
  std::string text;
  for (const std::string& override : options.overrides) {
    if (with_goal || !override.starts_with("training.max_steps=")) text += " --set " + shell_quote(override);
  }
  return text;
}

}  // namespace

std::string report_text(const RunOptions& options, const config::RunFile& run, const TrainerReport& report,
                        const std::vector<std::string>& memory, const RunRanks& ranks) {
  const fs::path output = run.output;
  std::string text = fmt::format("\n{}\n", headline(run, report));
  if (report.first) text += fmt::format("  loss on held-out text    {}\n", held_out_line(run, report));
  if (report.last) {
    for (const auto& [name, value] : report.last->others) text += fmt::format("  {:<24} {:.4f}\n", name, value);
  }
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    text += fmt::format("  memory of rank {:<10} {}\n", rank, memory[rank]);
  }
  for (const GroupTraffic& group : report.traffic) {
    const std::string name = group.name.empty() ? ranks.all : group.name;
    text += fmt::format("  sent over {:<14} {}", name, traffic_of(group));
    if (ranks.bubble && name == layout::kPipelineAxis)
      text += fmt::format(" ({} by the schedule)", percent(*ranks.bubble));
    text += "\n";
  }
  for (const std::string& place : report.metrics) text += fmt::format("  metrics                  {}\n", place);
  text += fmt::format("  checkpoint               {}\n", report.checkpoint);
  if (!report.best_checkpoint.empty()) text += fmt::format("  best checkpoint          {}\n", report.best_checkpoint);
  if (!options.trace.empty()) text += fmt::format("  timeline                 {}\n", options.trace);
  if (!report.interrupted) text += fmt::format("  Hugging Face folder      {}\n", (output / "export").string());

  const std::string settings = settings_of(options, report.interrupted || report.out_of_patience);
  const std::string goal = report.interrupted ? ""
                           : report.out_of_patience
                               ? fmt::format(" --set training.patience={}", run.training.patience * 2)
                               : fmt::format(" --set training.max_steps={}", report.steps * 2);
  const std::string command = command_of(options, memory.size());
  text += "try next\n";
  text += command.empty()
              ? fmt::format("  the command that started these ranks, with --resume auto{}{}\n", settings, goal)
              : fmt::format("  {} --resume auto{}{}\n", command, settings, goal);
  text += fmt::format("  {} --dtype bf16\n",
                      shell_command({options.program, "checkpoint", "export", (output / "checkpoints").string(), "--to",
                                     (output / "export-bf16").string()}));
  const std::string world = memory.size() > 1 ? fmt::format(" --world-size {}", memory.size()) : "";
  text += fmt::format("  {}{}{}\n", shell_command({options.program, "config", "check", options.run_file}), world,
                      settings_of(options, /*with_goal=*/true));
  return text;
}

}  // namespace tessera::train
