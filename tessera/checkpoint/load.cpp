#include "tessera/checkpoint/load.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/checkpoint/tensor_source.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::checkpoint {
namespace {

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const std::vector<std::string> shown(names.begin(),
                                       names.begin() + static_cast<int64_t>(std::min(kShown, names.size())));
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

bool wants_states(const LoadOptions& options) { return options.optimizer_states && !options.weights_only; }

bool is_loaded(const zero::Unit& unit, const LoadInput& input) { return !unit.is_bytes() || input.options.bytes; }

// The name under which the checkpoint has a parameter of the model.
std::string stored_name(const std::string& name, const Manifest& manifest, const LoadOptions& options) {
  std::string stored = name;
  for (const auto& [old_prefix, new_prefix] : options.renames) {
    if (!name.starts_with(new_prefix)) continue;
    stored = old_prefix + name.substr(new_prefix.size());
    break;
  }
  const auto alias = manifest.aliases.find(stored);
  return alias == manifest.aliases.end() || manifest.tensors.contains(stored) ? stored : alias->second;
}

// The names of the checkpoint that the model knows, on this rank or on those that hold its other parts; nothing where
// one of them could not read the manifest. Collective, also for such a rank.
std::optional<std::set<std::string>> known_names(const std::optional<Manifest>& manifest, const LoadInput& input) {
  std::set<std::string> known;
  for (const auto& unit : input.model.units()) {
    if (!is_loaded(*unit, input)) continue;
    for (const zero::NamedParam& param : unit->params()) {
      if (manifest) known.insert(stored_name(param.name(), *manifest, input.options));
    }
  }
  comm::Group& parts = *input.model.mesh().part_group();
  const nlohmann::json mine = manifest ? nlohmann::json(known) : nlohmann::json();
  for (const std::string& text : parts.exchange_texts(mine.dump(), "the parts of a checkpoint")) {
    const nlohmann::json theirs = nlohmann::json::parse(text);
    if (theirs.is_null()) return std::nullopt;
    known.merge(theirs.get<std::set<std::string>>());
  }
  return known;
}

// The checkpoint must be of this model: the same names and shapes, and the optimizer's states.
void check_fits(const Manifest& manifest, const LoadInput& input, const std::set<std::string>& known,
                const std::string& path) {
  std::vector<std::string> missing, other_shape, without_state;
  for (const auto& unit : input.model.units()) {
    if (!is_loaded(*unit, input)) continue;
    for (const zero::NamedParam& param : unit->params()) {
      const std::string name = stored_name(param.name(), manifest, input.options);
      const auto found = manifest.tensors.find(name);
      if (found == manifest.tensors.end()) {
        if (unit->trainable() || !manifest.trainable_only) missing.push_back(param.name());
        continue;
      }
      const StoredTensor& stored = found->second;
      const auto differs = [&](const std::vector<int64_t>& theirs, const std::vector<int64_t>& ours) {
        if (theirs == ours) return false;
        other_shape.push_back(
            fmt::format("{} ([{}] instead of [{}])", param.name(), fmt::join(theirs, ", "), fmt::join(ours, ", ")));
        return true;
      };
      const bool both_folded = !stored.folded.empty() && !param.spec.folded.empty();
      if (!differs(stored.shape, param.spec.shape) && both_folded) differs(stored.folded, param.spec.folded);
      if (!unit->trainable() || !wants_states(input.options)) continue;
      for (const std::string& state : input.optimizer_states) {
        const auto& kinds = found->second.kinds;
        if (std::find(kinds.begin(), kinds.end(), state) == kinds.end()) without_state.push_back(param.name());
      }
    }
  }
  std::vector<std::string> findings;
  if (!missing.empty() && input.options.strict) findings.push_back(fmt::format("it lacks {}", some_of(missing)));
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!known.contains(name)) unexpected.push_back(name);
  }
  if (!unexpected.empty() && input.options.strict) {
    findings.push_back(fmt::format("the model lacks {}", some_of(unexpected)));
  }
  if (!other_shape.empty()) findings.push_back(fmt::format("the shape differs for {}", some_of(other_shape)));
  if (!without_state.empty()) findings.push_back(fmt::format("no optimizer state for {}", some_of(without_state)));
  if (findings.empty()) return;
  throw Error(ErrorKind::kData,
              {fmt::format("the checkpoint belongs to another model: {}", fmt::join(findings, "; ")), path,
               "resume with the model and the optimizer that made it; a program of your own may load a part of it"});
}

// Kind by kind, as the shard files have them, so that files are read from front to back.
void read_unit(TensorSource& source, const Manifest& manifest, const LoadInput& input, zero::Unit& unit) {
  const auto& params = unit.params();
  const layout::Range owned_range = unit.owned();
  const auto read = [&](const std::string& kind, const zero::StateTensor& home) {
    const at::Tensor owned = home.load();
    for (const layout::Segment& segment : unit.layout().segments(owned_range)) {
      const zero::NamedParam& param = params[segment.param];
      const std::string name = stored_name(param.name(), manifest, input.options);
      if (!manifest.tensors.contains(name)) continue;
      source.read(name, kind, param.spec.cut_shape(), {param.box, {segment.first, segment.first + segment.numel}},
                  owned.narrow(0, segment.offset - owned_range.begin, segment.numel));
    }
    home.store(owned);
  };
  read(kWeight, unit.stored_weights());
  if (!unit.trainable() || !wants_states(input.options)) return;
  for (size_t k = 0; k < input.optimizer_states.size(); ++k) read(input.optimizer_states[k], unit.optimizer_state()[k]);
  for (size_t index = 0; index < params.size(); ++index) {
    const auto found = manifest.tensors.find(stored_name(params[index].name(), manifest, input.options));
    if (found == manifest.tensors.end()) continue;
    unit.steps()[index] = found->second.steps;
    for (size_t k = 0; k < input.optimizer_numbers.size(); ++k) {
      const auto number = found->second.numbers.find(input.optimizer_numbers[k]);
      unit.numbers(index)[k] = number == found->second.numbers.end() ? 0 : number->second;
    }
  }
}

// The sizes of the axes over which the model is split.
std::vector<std::pair<std::string, int>> model_parts(const std::vector<layout::Axis>& axes) {
  std::vector<std::pair<std::string, int>> parts;
  for (const layout::Axis& axis : axes) {
    if (axis.size > 1 && !layout::is_data_axis(axis.name)) parts.emplace_back(axis.name, axis.size);
  }
  return parts;
}

LoadResult load_from(const std::filesystem::path& path, const Manifest& manifest, const LoadInput& input,
                     const std::set<std::string>& known) {
  const at::NoGradGuard no_grad;
  check_fits(manifest, input, known, path.string());
  TensorSource source(path, manifest);
  input.model.world().settle();
  for (const auto& unit : input.model.units()) {
    if (is_loaded(*unit, input)) read_unit(source, manifest, input, *unit);
  }
  LoadResult result{
      .path = path.string(), .engine_state = manifest.engine_state, .client_state = manifest.client_state};
  result.shared_tensors = source.shared_tensors();
  comm::Group& world = input.model.world();
  const bool same_places = manifest.world_size == world.size() &&
                           model_parts(manifest.mesh) == model_parts(input.model.mesh().shape().axes());
  const bool own = wants_states(input.options) && same_places;
  if (own) result.rank_tensors = source.rank_tensors(world.rank());
  return result;
}

// What this rank makes of a checkpoint: the result, why it cannot use it, or neither, where another rank cannot.
struct Attempt {
  std::optional<LoadResult> result;
  std::string failure;
};

Attempt attempt(const LoadInput& input, const std::string& tag) {
  const std::filesystem::path path = input.folder / tag;
  Attempt made;
  std::optional<Manifest> manifest;
  const auto noting_failure = [&made](const auto& work) {
    try {
      work();
    } catch (const std::exception& error) {
      made.failure = error.what();
    }
  };
  noting_failure([&] { manifest = read_manifest(path); });
  const std::optional<std::set<std::string>> known = known_names(manifest, input);
  if (known) noting_failure([&] { made.result = load_from(path, *manifest, input, *known); });
  return made;
}

// What a save leaves that ended just before it replaced `latest`, or somebody who changed that file.
void say_if_older_than_another(const std::string& latest, const std::filesystem::path& folder) {
  for (const std::string& tag : tags_of(folder)) {
    if (tag == latest) return;
    try {
      read_manifest(folder / tag);
    } catch (const Error&) {
      continue;
    }
    log_warning("{} names {}, which is older than {}: name that one to load it", (folder / "latest").string(), latest,
                tag);
    return;
  }
}

// `named_by`: who asks for it, where that is not the program.
void require_tag(const std::string& tag, const std::filesystem::path& folder, const std::string& named_by = "") {
  constexpr size_t kNamed = 5;
  if (std::filesystem::is_directory(folder / tag)) return;
  std::vector<std::string> there = tags_of(folder);
  if (there.size() > kNamed) there.resize(kNamed);
  throw Error(ErrorKind::kData,
              {fmt::format("there is no checkpoint '{}'{}", tag, named_by), folder.string(),
               there.empty() ? "the folder has no checkpoint at all: give the one that the checkpoints were saved in"
                             : fmt::format("name one that is there, such as {}", fmt::join(there, ", "))});
}

// The tags to try, one after the other: every rank uses rank 0's.
std::vector<std::string> candidates(const LoadInput& input) {
  comm::Group& world = input.model.world();
  nlohmann::json mine = nlohmann::json::array();
  std::string failure;
  if (world.rank() == 0) {
    try {
      if (!input.tag.empty()) require_tag(input.tag, input.folder);
      const std::string tag = input.tag.empty() ? read_latest(input.folder) : input.tag;
      if (input.tag.empty() && !tag.empty()) {
        check_tag(tag, input.folder / "latest");
        require_tag(tag, input.folder, ", which the file 'latest' names");
        say_if_older_than_another(tag, input.folder);
      }
      if (!tag.empty()) mine.push_back(tag);
    } catch (const std::exception& error) {
      if (!input.options.fall_back) failure = error.what();
    }
    if (input.options.fall_back) {
      for (const std::string& tag : tags_of(input.folder)) {
        if (mine.empty() || mine.front() != tag) mine.push_back(tag);
      }
    }
  }
  const std::string text = nlohmann::json{{"tags", mine}, {"failure", failure}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto agreed = nlohmann::json::parse(world.exchange_texts(text, "the checkpoints to load").front());
  if (agreed["failure"] != "") throw Error(ErrorKind::kData, {agreed["failure"], "", ""});
  return agreed["tags"];
}

}  // namespace

std::optional<LoadResult> load(const LoadInput& input) {
  comm::Group& world = input.model.world();
  const std::vector<std::string> tags = candidates(input);
  std::string first_failure;
  for (const std::string& tag : tags) {
    Attempt made = attempt(input, tag);
    const auto failures = world.exchange_texts(made.failure, "load of a checkpoint");
    const auto failed = std::find_if(failures.begin(), failures.end(), [](const auto& text) { return !text.empty(); });
    if (failed == failures.end()) {
      if (tag != tags.front() && world.rank() == 0)
        log_warning("falling back to the newest intact checkpoint, {}", tag);
      return std::move(made.result);
    }
    if (!input.options.fall_back) throw Error(ErrorKind::kData, {*failed, "", ""});
    if (world.rank() == 0) log_warning("the checkpoint {} cannot be used: {}", tag, *failed);
    if (first_failure.empty()) first_failure = failed->substr(0, failed->find('\n'));  // the rest was logged
  }
  if (tags.empty()) return std::nullopt;
  throw Error(ErrorKind::kData,
              {tags.size() == 1 ? "the only checkpoint here cannot be used: " + first_failure
                                : fmt::format("none of the {} checkpoints here can be used; the newest: {}",
                                              tags.size(), first_failure),
               input.folder.string(),
               "resume with the model that they are of, or choose another output to start from the beginning"});
}

}  // namespace tessera::checkpoint
