#include "tessera/config/batch_sizes.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::config {
namespace {

// No batch comes near 2^63: a product that would pass it stops there, and then fits nothing.
int64_t product(int64_t a, int64_t b, int64_t c) {
  int64_t ab = 0, abc = 0;
  if (__builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc)) return INT64_MAX;
  return abc;
}

// The values that would mend a product that does not fit, each with the other two kept.
std::string ways_to_mend(const BatchSizes& given, int64_t ranks) {
  std::string ways = fmt::format("set train_batch_size to {}", product(given.micro, given.accumulation, ranks));
  const int64_t for_micro = product(given.accumulation, ranks, 1);
  if (given.global % for_micro == 0) {
    ways += fmt::format(", or train_micro_batch_size_per_gpu to {}", given.global / for_micro);
  }
  const int64_t for_accumulation = product(given.micro, ranks, 1);
  if (given.global % for_accumulation == 0) {
    ways += fmt::format(", or gradient_accumulation_steps to {}", given.global / for_accumulation);
  }
  const int64_t for_ranks = product(given.micro, given.accumulation, 1);
  if (given.global % for_ranks == 0)
    ways += fmt::format(", or run on {} data-parallel ranks", given.global / for_ranks);
  return ways;
}

// For a global batch that the ranks do not divide.
std::string nearest_batches(int64_t global, int64_t ranks) {
  const int64_t below = global / ranks * ranks;
  const std::string sizes = below > 0 ? fmt::format("{} or {}", below, below + ranks) : std::to_string(ranks);
  int64_t fewer = std::min(ranks, global);
  while (global % fewer != 0) --fewer;
  return fmt::format("set train_batch_size to {}, or run on {}", sizes, count_of(fewer, "rank"));
}

void require_positive(std::optional<int64_t> value, const char* key, const std::string& where) {
  if (value && *value <= 0) {
    throw Error(ErrorKind::kConfig, {fmt::format("'{}' is {}", key, *value), where, "use a whole number above 0"});
  }
}

// DeepSpeed's table, in its order; every division is a floor, so what does not divide fails the product below.
BatchSizes fill_in(std::optional<int64_t> global, std::optional<int64_t> micro, std::optional<int64_t> accumulation,
                   int64_t ranks) {
  if (global && micro && accumulation) return {*global, *micro, *accumulation};
  if (global && micro) return {*global, *micro, *global / *micro / ranks};
  if (global && accumulation) return {*global, *global / ranks / *accumulation, *accumulation};
  if (micro && accumulation) return {product(*micro, *accumulation, ranks), *micro, *accumulation};
  if (global) return {*global, *global / ranks, 1};
  return {product(*micro, 1, ranks), *micro, 1};
}

}  // namespace

BatchSizes resolve_batch_sizes(const BatchRequest& request, const std::string& where) {
  const auto& [global, micro, accumulation, data_parallel_size, may_lower_micro] = request;
  TESSERA_INVARIANT(data_parallel_size > 0);
  if (!global && !micro) {
    throw Error(
        ErrorKind::kConfig,
        {"no batch size is given", where,
         "set train_batch_size or train_micro_batch_size_per_gpu (gradient_accumulation_steps alone is not enough)"});
  }
  require_positive(global, "train_batch_size", where);
  require_positive(micro, "train_micro_batch_size_per_gpu", where);
  require_positive(accumulation, "gradient_accumulation_steps", where);

  const BatchSizes sizes = fill_in(global, micro, accumulation, data_parallel_size);
  if (sizes.micro > 0 && sizes.accumulation > 0 &&
      sizes.global == product(sizes.micro, sizes.accumulation, data_parallel_size)) {
    return sizes;
  }
  if (may_lower_micro && global && micro && !accumulation) {
    if (*global % data_parallel_size != 0) {
      throw Error(ErrorKind::kConfig,
                  {fmt::format("train_batch_size {} cannot be split evenly over {} data-parallel ranks", *global,
                               data_parallel_size),
                   where, nearest_batches(*global, data_parallel_size)});
    }
    const int64_t of_a_rank = *global / data_parallel_size;
    int64_t lower = std::min(*micro, of_a_rank);
    while (of_a_rank % lower != 0) --lower;
    return {*global, lower, of_a_rank / lower};
  }
  // A floor that reached 0 stands for 1 in the advice.
  const BatchSizes at_least_one{sizes.global, std::max<int64_t>(sizes.micro, 1),
                                std::max<int64_t>(sizes.accumulation, 1)};
  // With DeepSpeed's own equation, which people look for.
  const bool accumulates = sizes.accumulation > 0;
  const std::string accumulated =
      accumulates ? fmt::format("gradient_accumulation_steps {} x ", sizes.accumulation) : "";
  const std::string equation = accumulates ? fmt::format(" ({} != {} * {} * {})", sizes.global, sizes.micro,
                                                         sizes.accumulation, data_parallel_size)
                                           : "";
  throw Error(
      ErrorKind::kConfig,
      {fmt::format("the batch sizes do not fit together: train_batch_size {} is {} train_micro_batch_size_per_gpu "
                   "{} x {}{} data-parallel ranks{}",
                   sizes.global, accumulates ? "not" : "less than", sizes.micro, accumulated, data_parallel_size,
                   equation),
       where, ways_to_mend(at_least_one, data_parallel_size)});
}

}  // namespace tessera::config
