// The gradients of linear layers' weights, put off: in a pipeline others wait for the gradients of what entered a
// layer, and nobody for these.
//
//   nn::DeferredWeights weights;
//   { nn::DeferredWeights::Scope scope(weights);  loss = model->forward(…);  loss.backward(); }
//   …
//   weights.run();    // now the weights' gradients come, to autograd's own hooks or to their places
//
// What is not the weight of a linear layer (a bias, a norm, an embedding) has its gradient at once. Kept until run():
// what entered each layer and the gradient of what left it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::nn {

class DeferredWeights {
 public:
  // While it lives, products of nn::linear on this thread put theirs off. Around the forward, and around a backward
  // that computes forwards again.
  class Scope {
   public:
    explicit Scope(DeferredWeights& weights);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    DeferredWeights* before_;
  };

  // Computes and hands on what was put off, in the order in which it was, and forgets it.
  void run();

 private:
  friend at::Tensor linear_with_deferred_weight(const at::Tensor& input, const at::Tensor& weight,
                                                const at::Tensor& bias);
  struct Function;
  struct Product {
    at::Tensor weight;    // with what autograd knows of it
    at::Tensor input;     // (rows, in)
    at::Tensor gradient;  // (rows, out)
  };
  std::vector<Product> products_;
};

// Whether a scope on this thread takes this weight's gradient.
bool is_deferred(const at::Tensor& weight);

// nn::linear where it does.
at::Tensor linear_with_deferred_weight(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace tessera::nn
