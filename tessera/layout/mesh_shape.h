// The ranks of a run on named axes, such as pp × dp_shard × tp: who is where, and who shares an axis with whom.
// Arithmetic only; comm/mesh.h makes groups of it. Axes are named outermost first, and ranks count row by row: the last
// axis is that of neighbours. Immutable; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::layout {

// The axes that have a meaning of their own; any but the first four is a model axis, over which ranks hold different
// parts of the model, or the same part.
inline constexpr const char* kReplicateAxis = "dp_replicate";  // data parallel; training state is replicated
inline constexpr const char* kShardAxis = "dp_shard";          // data parallel; ZeRO shards training state
inline constexpr const char* kExpertAxis = "ep";               // as dp_shard, but for experts: each rank has others
inline constexpr const char* kContextAxis = "cp";              // parts of one sequence; for ZeRO as dp_shard
inline constexpr const char* kTensorAxis = "tp";               // parts of each matrix (nn/tensor_axis.h)
inline constexpr const char* kPipelineAxis = "pp";             // consecutive layers (pipeline/schedule.h)

// Over which data, not the model, is split.
bool is_data_axis(const std::string& name);

struct Axis {
  std::string name;
  int size = 1;
};

class MeshShape {
 public:
  // ErrorKind::kUsage for a size below 1, or a name that comes twice.
  explicit MeshShape(std::vector<Axis> axes);

  // Ranks that somebody else has placed: coordinates[rank][axis]. ErrorKind::kUsage where they are no mesh: two ranks
  // in one place, or one outside.
  MeshShape(std::vector<Axis> axes, std::vector<std::vector<int>> coordinates);

  // These axes for a world of `ranks`: the one of size 0, if any, takes what the others leave. ErrorKind::kUsage where
  // they do not factor; names the nearest sizes that do, and `where` they were given.
  static MeshShape of_world(int ranks, std::vector<Axis> axes, const std::string& where = "the mesh");

  std::string product() const;  // "dp_shard 2 × tp 2"

  // All ranks are data parallel: one axis, dp_shard.
  static MeshShape of_data_parallel(int ranks) { return MeshShape({{kShardAxis, ranks}}); }

  const std::vector<Axis>& axes() const { return axes_; }
  int ranks() const { return static_cast<int>(coordinates_.size()); }
  bool has(const std::string& axis) const;

  // An axis that the mesh does not have has size 1, and coordinate 0.
  int size(const std::string& axis) const;
  int coordinate(int rank, const std::string& axis) const;

  // The ranks that have all coordinates but those of the named axes in common with `rank`, itself included, in the
  // order of those coordinates, the mesh's first axis outermost.
  std::vector<int> members(int rank, const std::vector<std::string>& axes) const;

  // The axes over which data, not the model, is split; of those, the ones over which samples are, not the tokens of a
  // sample; and the others.
  std::vector<std::string> data_axes() const;
  std::vector<std::string> batch_axes() const;
  std::vector<std::string> model_axes() const;
  int replicas() const { return ranks() / parts(); }                // data-parallel ranks
  int readers() const { return replicas() / size(kContextAxis); }   // … each of samples of its own
  int shards() const { return replicas() / size(kReplicateAxis); }  // into which ZeRO cuts what is not of experts
  int parts() const;  // product of the model axes: places that may hold different parts of the model

  // The axes over which ranks hold different parts of some parameter: the model axes, and that of experts. Whether
  // there are any.
  std::vector<std::string> part_axes() const;
  bool holds_parts() const { return parts() > 1 || size(kExpertAxis) > 1; }

  // "pp 1, dp_shard 0, tp 1", of axes with several ranks; empty where that is one over which data is split, and a
  // rank's number says all.
  std::string describe(int rank) const;

 private:
  std::vector<Axis> axes_;
  std::vector<std::vector<int>> coordinates_;  // of each rank
};

}  // namespace tessera::layout
