#include "tessera/checkpoint/inspect.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/export_sums.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/storage/checked_file.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr int64_t kChunk = 1 << 20;  // elements compared at a time

void compare_values(CheckpointReader& a, CheckpointReader& b, Difference& difference) {
  const int64_t numel = a.manifest().tensors.at(difference.tensor).numel();
  for (int64_t first = 0; first < numel; first += kChunk) {
    const auto read = [&](CheckpointReader& from) {
      const at::Tensor values = at::empty({std::min(kChunk, numel - first)}, at::kDouble);
      from.source().read(difference.tensor, difference.kind, first, values);
      return values;
    };
    const at::Tensor x = read(a), y = read(b);
    const at::Tensor same = x.eq(y).logical_or_(x.isnan().logical_and_(y.isnan()));
    const at::Tensor distance = at::where(same, at::zeros_like(x), x.sub(y).abs_());
    difference.elements += same.logical_not().sum().item<int64_t>();
    difference.largest = std::max(difference.largest, distance.max().item<double>());
  }
}

struct Findings {
  std::vector<std::string> texts;

  // Whether it went well.
  template <class Work>
  bool attempt(Work work) {
    try {
      work();
      return true;
    } catch (const Error& error) {
      texts.push_back(error.report().what + " (" + error.report().where + ")");
      return false;
    }
  }
};

void check_bytes(const fs::path& path, const ShardFile& file) {
  storage::CheckedFile(path.string(), file.sum).check_all();
}

}  // namespace

std::vector<std::string> verify(const fs::path& checkpoint) {
  Findings findings;
  Manifest manifest;
  if (!findings.attempt([&] { manifest = read_manifest(checkpoint); })) return findings.texts;
  for (const ShardFile& file : manifest.files) {
    const fs::path path = checkpoint / file.name;
    if (manifest.node_local && !fs::exists(path)) continue;
    findings.attempt([&] {
      check_bytes(path, file);
      const storage::SafetensorsFile header(path.string());
    });
  }
  return findings.texts;
}

std::vector<std::string> verify_export(const fs::path& folder) {
  Findings findings;
  std::vector<ShardFile> files;
  if (!findings.attempt([&] { files = read_export_sums(folder); })) return findings.texts;
  for (const ShardFile& file : files) findings.attempt([&] { check_bytes(folder / file.name, file); });
  return findings.texts;
}

std::vector<Difference> compare(const fs::path& a_path, const fs::path& b_path) {
  const at::NoGradGuard no_grad;
  CheckpointReader a(a_path), b(b_path);
  using Entry = std::pair<std::string, std::string>;  // tensor, kind
  const auto entries = [](const CheckpointReader& opened) {
    std::set<Entry> all;
    for (const auto& [name, tensor] : opened.manifest().tensors) {
      for (const std::string& kind : tensor.kinds) all.emplace(name, kind);
    }
    return all;
  };
  const std::set<Entry> in_a = entries(a), in_b = entries(b);
  std::set<Entry> all = in_a;
  all.insert(in_b.begin(), in_b.end());
  std::vector<Difference> differences;
  for (const auto& [tensor, kind] : all) {
    Difference difference{.kind = kind, .tensor = tensor};
    if (!in_b.contains({tensor, kind})) {
      difference.what = "only in A";
    } else if (!in_a.contains({tensor, kind})) {
      difference.what = "only in B";
    } else if (a.manifest().tensors.at(tensor).shape != b.manifest().tensors.at(tensor).shape) {
      difference.what = "shape";
    } else {
      compare_values(a, b, difference);
      if (difference.elements == 0) continue;
      difference.what = "values";
    }
    differences.push_back(difference);
  }
  return differences;
}

uint64_t total_bytes(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const ShardFile& file : manifest.files) bytes += file.sum.bytes;
  return bytes;
}

}  // namespace tessera::checkpoint
