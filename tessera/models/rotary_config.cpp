#include "tessera/models/rotary_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/base/suggest.h"

namespace tessera::models {
namespace {

using nlohmann::json;
using Scaling = nn::RotaryOptions::Scaling;

constexpr std::pair<const char*, Scaling> kScalings[] = {
    {"default", Scaling::kNone}, {"linear", Scaling::kLinear},     {"dynamic", Scaling::kDynamic},
    {"yarn", Scaling::kYarn},    {"longrope", Scaling::kLongrope}, {"llama3", Scaling::kLlama3},
};

class RotaryReader {
 public:
  RotaryReader(const ModelConfig& file, int64_t max_positions) : file_(file), max_positions_(max_positions) {
    for (const char* const key : {"rope_parameters", "rope_scaling"}) {
      const auto found = file.values.find(key);
      if (found == file.values.end() || found->is_null()) continue;
      if (!found->is_object()) refuse(fmt::format("'{}' is not an object", key), "check the file, or get it again");
      values_ = *found;
      return;
    }
    values_ = json::object();
  }

  nn::RotaryOptions read(int64_t head_size, double theta) {
    nn::RotaryOptions options{.theta = json_value(file_.values, "rope_theta", theta, file_.path),
                              .scaling = scaling(),
                              .max_positions = max_positions_};
    options.theta = number("rope_theta", options.theta);
    const double share =
        number("partial_rotary_factor", json_value(file_.values, "partial_rotary_factor", 1.0, file_.path));
    options.width = static_cast<int64_t>(static_cast<double>(head_size) * share);
    options.original_positions =
        whole("original_max_position_embeddings",
              json_value(file_.values, "original_max_position_embeddings", max_positions_, file_.path));
    read_scaling(options);
    check(options, share);
    return options;
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const {
    throw Error(ErrorKind::kData, {what, file_.path, fix});
  }
  double number(const char* key, double otherwise) const { return json_value(values_, key, otherwise, file_.path); }
  int64_t whole(const char* key, int64_t otherwise) const { return json_value(values_, key, otherwise, file_.path); }

  Scaling scaling() const {
    const std::string name =
        json_value(values_, "rope_type", json_value(values_, "type", std::string("default"), file_.path), file_.path);
    std::vector<std::string> known;
    for (const auto& [each, value] : kScalings) {
      if (name == each) return value;
      known.emplace_back(each);
    }
    const auto nearest = nearest_name(name, known);
    refuse(fmt::format("the rotary scaling '{:.100}' is not supported", name),
           (nearest ? fmt::format("did you mean '{}'? ", *nearest) : "") +
               fmt::format("those known: {}", fmt::join(known, ", ")));
  }

  void read_scaling(nn::RotaryOptions& options) const {
    const double grown = static_cast<double>(max_positions_) / static_cast<double>(options.original_positions);
    const bool may_follow = options.scaling == Scaling::kYarn || options.scaling == Scaling::kLongrope;
    options.factor = number("factor", may_follow ? grown : 0);
    options.attention_factor = number("attention_factor", 0);
    options.beta_fast = number("beta_fast", options.beta_fast);
    options.beta_slow = number("beta_slow", options.beta_slow);
    options.mscale = number("mscale", 0);
    options.mscale_all_dim = number("mscale_all_dim", 0);
    options.truncate = json_value(values_, "truncate", true, file_.path);
    options.low_frequency = number("low_freq_factor", 0);
    options.high_frequency = number("high_freq_factor", 0);
    options.short_factors = json_value(values_, "short_factor", std::vector<double>{}, file_.path);
    options.long_factors = json_value(values_, "long_factor", std::vector<double>{}, file_.path);
  }

  void check(const nn::RotaryOptions& options, double share) const {
    const auto need = [&](bool holds, const std::string& what) {
      if (!holds) refuse(what, "check the file, or get it again");
    };
    need(options.theta > 1 && std::isfinite(options.theta), fmt::format("rope_theta is {}", options.theta));
    need(share > 0 && share <= 1 && options.width % 2 == 0 && options.width > 2,
         fmt::format("{} features of a head are to be rotated; it must be an even number, more than 2", options.width));
    if (options.scaling == Scaling::kNone) return;
    need(options.factor >= 1 && std::isfinite(options.factor),
         fmt::format("the rotary scaling's factor is {}", options.factor));
    need(options.original_positions > 1,
         fmt::format("original_max_position_embeddings is {}", options.original_positions));
    need(options.beta_fast >= options.beta_slow && options.beta_slow > 0, "beta_fast is below beta_slow");
    if (options.scaling == Scaling::kLlama3) {
      need(options.low_frequency > 0 && options.high_frequency > options.low_frequency,
           "low_freq_factor and high_freq_factor do not enclose a band");
    }
    if (options.scaling == Scaling::kLongrope) {
      const auto pairs = static_cast<size_t>(options.width / 2);
      need(options.short_factors.size() == pairs && options.long_factors.size() == pairs,
           fmt::format("short_factor and long_factor must have {} numbers each", pairs));
    }
  }

  const ModelConfig& file_;
  int64_t max_positions_;
  json values_;
};

}  // namespace

nn::RotaryOptions read_rotary(const ModelConfig& file, int64_t head_size, int64_t max_positions, double theta) {
  return RotaryReader(file, max_positions).read(head_size, theta);
}

}  // namespace tessera::models
