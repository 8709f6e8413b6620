#include "tessera/plan/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/format.h"

namespace tessera::plan {
namespace {

using config::Json;

std::string bytes_text(int64_t bytes) { return bytes == 0 ? "-" : format_bytes(static_cast<uint64_t>(bytes)); }

const char* dtype_name(config::Dtype dtype) {
  return dtype == config::Dtype::kFp32 ? "fp32" : dtype == config::Dtype::kBf16 ? "bf16" : "fp16";
}

std::string places_text(const MemoryNeed& need, bool on_cpu) {
  std::string text = fmt::format("{:>10}", bytes_text(need.bytes(Place::kDevice)));
  if (!on_cpu) {
    text += fmt::format("  {:>10}  {:>10}", bytes_text(need.bytes(Place::kHost)), bytes_text(need.pinned_bytes()));
  }
  return text + fmt::format("  {:>10}", bytes_text(need.bytes(Place::kNvme)));
}

Json places_json(const MemoryNeed& need) {
  return {{"device", need.bytes(Place::kDevice)},
          {"host", need.bytes(Place::kHost)},
          {"pinned", need.pinned_bytes()},
          {"nvme", need.bytes(Place::kNvme)}};
}

const char* place_name(Place place, bool on_cpu) {
  if (place == Place::kNvme) return "NVMe";
  return place == Place::kHost || on_cpu ? "host" : "device";
}

MemoryNeed need_of(const EstimateReport& report, const TrainingSetup& setup) {
  return memory_need(report.part, shared(setup, report.sharing));
}

std::string flops_text(double flops) {
  const char* prefix = "kMGTPE";
  for (flops /= 1000; flops >= 999.5 && prefix[1] != 0; flops /= 1000) ++prefix;
  return fmt::format("{:.3g} {}FLOP", flops, *prefix);
}

std::string header(const EstimateReport& report) {
  const ModelCensus& model = report.model;
  const TrainingSetup& setup = report.wanted;
  std::string text = fmt::format("{}, {} in the largest layer: {}\n", count_of(model.params, "parameter"),
                                 format_count(model.largest_layer), model.source);
  if (model.frozen > 0) {
    text += fmt::format("an adapter of {} of them is trained, the others are frozen", format_count(model.trained()));
    if (model.quantized > 0) {
      text +=
          fmt::format("; {} are kept as NF4, in {}", format_count(model.quantized), bytes_text(model.quantized_bytes));
    }
    text += "\n";
  }
  text += fmt::format("{}, {}, micro batch {} of {}, {}activation checkpointing, {} per weight\n",
                      count_of(setup.ranks, "rank"), dtype_name(setup.dtypes.compute), setup.micro_batch,
                      count_of(setup.length, "token"), setup.activation_checkpointing ? "" : "no ",
                      count_of(setup.state_tensors, "state tensor"));
  if (report.sharing.ranks() > 1) {
    text += fmt::format("{}: of the model a rank has at most {}\n", describe(report.sharing),
                        count_of(report.part.params, "parameter"));
  }
  if (model.architecture) {
    text += fmt::format("a micro batch takes {}, forward and backward\n", flops_text(micro_batch_flops(model, setup)));
  } else {
    text += "its activations are not known and come on top of every figure\n";
  }
  text +=
      fmt::format("a rank may use {}{}\n", bytes_text(report.share.device),
                  setup.on_cpu ? " of this host's memory"
                               : fmt::format(" on its device and {} of host memory", bytes_text(report.share.host)));
  if (!report.share.nvme_path.empty()) {
    text += fmt::format("and {} of disk at {}\n", bytes_text(report.share.nvme), report.share.nvme_path);
  }
  return text;
}

std::string terms_text(const EstimateReport& report) {
  const MemoryNeed need = need_of(report, report.wanted);
  std::string text = fmt::format("\n{}, at the peak of a step\n", describe(report.wanted));
  for (const MemoryTerm& term : need.terms) {
    text += fmt::format("  {:<34}{:>10}  {}\n", term.what, bytes_text(term.bytes),
                        place_name(term.place, report.wanted.on_cpu));
  }
  return text;
}

std::string fit_text(const EstimateReport& report, const MemoryNeed& need) {
  if (need.bytes(Place::kNvme) > 0 && report.share.nvme_path.empty()) return "needs a folder: --nvme";
  return name_of(fit_of(need, report.share, report.wanted.on_cpu));
}

}  // namespace

std::vector<TrainingSetup> table_rows(const TrainingSetup& wanted) {
  std::vector<TrainingSetup> rows;
  const auto add = [&](int stage, OffloadTo optimizer, OffloadTo params) {
    TrainingSetup row = wanted;
    row.stage = stage;
    row.optimizer = optimizer;
    row.params = params;
    if (stage < 3) row.optimizer_ratio = 1;  // a part of it is stage 3's to offload
    if (params == OffloadTo::kNvme && wanted.params != OffloadTo::kNvme) row.max_in_cpu = 0;  // all of it
    rows.push_back(row);
  };
  for (const int stage : {0, 1, 2, 3}) {
    add(stage, OffloadTo::kNone, OffloadTo::kNone);
    for (const OffloadTo offload : {OffloadTo::kCpu, OffloadTo::kNvme}) {
      if (stage == 0 || (offload == OffloadTo::kCpu && wanted.on_cpu)) continue;
      add(stage, offload, OffloadTo::kNone);
      if (stage == 3) add(stage, offload, offload);
    }
  }
  return rows;
}

std::string report_text(const EstimateReport& report) {
  const bool on_cpu = report.wanted.on_cpu;
  std::string text = header(report);
  if (report.has_config) text += terms_text(report);
  text += fmt::format("\n{:<43}{:>10}{}  {:>10}  fits\n", "a rank needs", on_cpu ? "memory" : "device",
                      on_cpu ? "" : fmt::format("  {:>10}  {:>10}", "host", "pinned"), "NVMe");
  for (const TrainingSetup& row : report.rows) {
    const MemoryNeed need = need_of(report, row);
    text += fmt::format("{:<43}{}  {}\n", describe(row), places_text(need, on_cpu), fit_text(report, need));
  }
  text += on_cpu
              ? "on a CPU, offload to cpu moves nothing\n"
              : "pinned: what of the host's memory is page-locked for the copies of a device, which is at most half of "
                "what the host has, shared by its ranks; the rest of it is pageable\n";
  return text;
}

Json report_json(const EstimateReport& report) {
  const TrainingSetup& setup = report.wanted;
  const auto row_of = [&](const TrainingSetup& row) {
    const MemoryNeed need = need_of(report, row);
    Json json = {{"stage", row.stage},
                 {"offload_optimizer", name_of(row.optimizer)},
                 {"offload_param", name_of(row.params)},
                 {"bytes", places_json(need)},
                 {"fits", fit_of(need, report.share, row.on_cpu) == Fit::kYes},
                 {"tight", fit_of(need, report.share, row.on_cpu) == Fit::kTight},
                 {"terms", Json::array()}};
    for (const MemoryTerm& term : need.terms) {
      json["terms"].push_back(
          {{"what", term.what}, {"place", place_name(term.place, row.on_cpu)}, {"bytes", term.bytes}});
    }
    return json;
  };
  Json result = {{"model",
                  {{"source", report.model.source},
                   {"params", report.model.params},
                   {"trained", report.model.trained()},
                   {"quantized", report.model.quantized},
                   {"largest_layer", report.model.largest_layer},
                   {"activations_known", report.model.architecture.has_value()}}},
                 {"setup",
                  {{"ranks", setup.ranks},
                   {"micro_batch", setup.micro_batch},
                   {"length", setup.length},
                   {"dtype", dtype_name(setup.dtypes.compute)},
                   {"activation_checkpointing", setup.activation_checkpointing}}},
                 {"share", {{"device", report.share.device}, {"host", report.share.host}, {"nvme", report.share.nvme}}},
                 {"rows", Json::array()}};
  if (report.sharing.ranks() > 1) {
    result["setup"]["parallel"] = {
        {"tensor", report.sharing.tensor}, {"context", report.sharing.context}, {"pipeline", report.sharing.pipeline}};
    result["model"]["params_of_rank"] = report.part.params;
  }
  if (report.model.architecture) result["setup"]["flops"] = micro_batch_flops(report.model, setup);
  if (report.has_config) result["config"] = row_of(setup);
  for (const TrainingSetup& row : report.rows) result["rows"].push_back(row_of(row));
  return result;
}

}  // namespace tessera::plan
