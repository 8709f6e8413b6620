#include "tessera/models/flops.h"

#include "tessera/models/census.h"

namespace tessera::models {
namespace {

// Elements of a layer's matrices.
struct LayerWeights {
  double of_queries, of_keys, feed_forward;  // those that queries and the output go through; keys and values

  explicit LayerWeights(const Architecture& net) {
    const auto hidden = static_cast<double>(net.hidden), size = static_cast<double>(net.head_size);
    of_queries = 2 * hidden * static_cast<double>(net.heads) * size;
    of_keys = 2 * hidden * static_cast<double>(net.kv_heads) * size;
    feed_forward = hidden * static_cast<double>((net.gated_ffn ? 3 : 2) * net.ffn + net.router_features);
  }
};

}  // namespace

double forward_flops(const Architecture& net, const BatchShape& batch) {
  const LayerWeights weights(net);
  const auto texts = static_cast<double>(batch.texts), length = static_cast<double>(batch.length);
  const auto written = static_cast<double>(batch.written);
  // Of one text: queries times keys, and their weights times values.
  const double a_pair = 2 * static_cast<double>(net.heads * net.head_size);
  const auto layer = [&](double tokens) {
    return tokens * (weights.of_queries + weights.of_keys + weights.feed_forward) + a_pair * tokens * tokens;
  };
  const double cross_attention = written * weights.of_queries + length * weights.of_keys + a_pair * written * length;
  const auto writing = static_cast<double>(net.decoder_layers);
  const auto reading = static_cast<double>(net.layers) - writing;
  const double products = texts * (reading * layer(length) + writing * (layer(written) + cross_attention)) +
                          static_cast<double>(batch.targets) * static_cast<double>(net.head_weights);
  return 2 * products;
}

double training_flops(const ModelCensus& model, const BatchShape& batch) {
  const double trained = static_cast<double>(model.trained()) / static_cast<double>(model.params);
  return (2 + trained) * forward_flops(*model.architecture, batch);
}

}  // namespace tessera::models
