// What a parameter of the model is, whichever ranks hold it: the one description from which ZeRO shards it, the norm
// counts it, a checkpoint stores it and the planner adds it up. No tensors; immutable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::layout {

struct Box;
class MeshShape;

// The ranks of a model axis hold different parts of a parameter, cut along `dim` of its shape.
struct Shard {
  std::string axis;
  int dim = 0;

  // Of the parts, as in consecutive_parts.h: part p has the elements [bounds[p], bounds[p + 1]). Where there are fewer
  // parts than ranks, as many neighbours hold each, as they do with a key head. Empty: as torch.chunk cuts, into parts
  // of ceil(size / ranks), the last ones shorter.
  std::vector<int64_t> bounds = {};
};

// Of a model axis, the ranks that have a parameter at all: those at these coordinates, rising. Where there are several,
// each has a gradient of its own, and the parameter's is their sum: embeddings that are a pipeline's first layer and
// its last.
struct Holders {
  std::string axis;
  std::vector<int> coordinates;
};

// What its elements are.
enum class Storage {
  kFloating,  // numbers, in the dtypes that the run's precision gives them
  kBytes,     // bytes, the same in every precision: frozen, sharded and moved as they are (nn/nf4_product.h)
};

struct ParamSpec {
  std::string name;            // as in a checkpoint, the same whatever the mesh
  std::vector<int64_t> shape;  // of the whole, the global tensor
  // The shape as shards count its dimensions, where matrices lie side by side in one and each is cut: (in, 3, out) of
  // (in, 3 out), whose columns are queries, keys and values. In row-major order it is the same tensor. Empty: `shape`.
  std::vector<int64_t> folded{};
  std::vector<Shard> shards{};     // outermost first, where two cut the same dimension; replicated over any other axis
  std::vector<Holders> holders{};  // of an axis that is not among them, every rank is one
  bool trains = true;
  bool decays = true;  // weight decay applies to it
  Storage storage = Storage::kFloating;

  const std::vector<int64_t>& cut_shape() const { return folded.empty() ? shape : folded; }
};

// Whether each dimension of `shape` is the product of one or more of `folded`, in their order. Safe for numbers from
// anywhere.
bool is_fold(const std::vector<int64_t>& folded, const std::vector<int64_t>& shape);

// The part of the global tensor that this rank holds, before ZeRO shards it, in the dimensions of cut_shape().
// ErrorKind::kUsage names an axis that the mesh lacks, a dimension that the tensor lacks or that comes to nothing on
// some rank, bounds that are not the dimension's, a fold that is not the shape's.
Box local_box(const ParamSpec& spec, const MeshShape& mesh, int rank);

// The shape of such a part, in as many dimensions as the global tensor has.
std::vector<int64_t> shape_of_part(const ParamSpec& spec, const Box& box);

// The data axes of several ranks over which these hold different parts of the parameter, or of which only some hold it:
// for it they are no data axes (experts; see kExpertAxis).
std::vector<std::string> data_axes_in_parts(const ParamSpec& spec, const MeshShape& mesh);

// Of the ranks that hold the same part over the model axes, whether this is the first: the one that counts it in a norm
// and writes it into a checkpoint.
bool is_first_holder(const ParamSpec& spec, const MeshShape& mesh, int rank);

}  // namespace tessera::layout
