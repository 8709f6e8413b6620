#include "tessera/zero/gradient_hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>

#include "tessera/zero/unreadable.h"

namespace tessera::zero {

struct GradientHooks::OnArrival : kernels::GradientTaker {
  OnArrival(const GradientHooks& hooks, size_t unit, size_t param) : hooks_(hooks), unit_(unit), param_(param) {}
  void operator()(const at::Tensor& parameter) override {
    if (!hooks_.is_hidden(parameter)) hooks_.arrived_(unit_, param_, parameter);
  }
  Place place() override { return hooks_.places_.place ? hooks_.places_.place(unit_, param_) : Place(); }
  void taken() override { hooks_.places_.taken(unit_, param_); }
  int hooks_before() const override { return clearing_ ? 1 : 0; }

  const GradientHooks& hooks_;  // takes its hooks away before it goes
  size_t unit_;
  size_t param_;
  std::optional<unsigned> clearing_;  // the hook that clears what stands for the last gradient before the next arrives
};

namespace {

ErrorReport taken_gradient(const std::string& name) {
  return {"the gradient of '" + name + "' was taken by the engine, which reduces it and applies it in step()",
          "the parameter's grad()",
          "call engine->step(); clip with the key gradient_clipping, read get_global_grad_norm(); an optimizer of your "
          "own goes into InitializeOptions::optimizer"};
}

}  // namespace

GradientHooks::~GradientHooks() {
  for (const at::Tensor& parameter : watched_) {
    auto* const hook = dynamic_cast<OnArrival*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
    if (hook == nullptr || &hook->hooks_ != this) continue;
    if (hook->clearing_) {
      parameter.remove_hook(*hook->clearing_);
      parameter.mutable_grad() = at::Tensor();
    }
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

void GradientHooks::watch(const at::Tensor& parameter, const std::string& name, size_t unit, size_t param) {
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  accumulators_.push_back(std::make_shared<std::decay_t<decltype(accumulator)>>(accumulator));
  c10::TensorImpl* const impl = parameter.unsafeGetTensorImpl();
  auto arrived = std::make_unique<OnArrival>(*this, unit, param);
  if (!shows_undefined_) {
    const at::Tensor hidden =
        unreadable(parameter.sizes().vec(), parameter.options().requires_grad(false), taken_gradient(name));
    hidden_[impl] = hidden;
    // Runs before autograd adds the new gradient to what is there; of one that was written to its place, none comes.
    arrived->clearing_ = parameter.register_hook([impl, hidden](const at::Tensor& gradient) {
      if (gradient.defined() && impl->grad().is_same(hidden)) impl->mutable_grad() = at::Tensor();
    });
  }
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(arrived));
  watched_.push_back(parameter);
}

// An optimizer that is not the engine's would pass over an undefined gradient without a word.
void GradientHooks::hide(const at::Tensor& parameter) {
  const auto hidden = hidden_.find(parameter.unsafeGetTensorImpl());
  parameter.mutable_grad() = hidden == hidden_.end() ? at::Tensor() : hidden->second;
}

bool GradientHooks::is_hidden(const at::Tensor& parameter) const {
  const auto hidden = hidden_.find(parameter.unsafeGetTensorImpl());
  return !parameter.grad().defined() || (hidden != hidden_.end() && parameter.grad().is_same(hidden->second));
}

bool GradientHooks::is_watched(const at::Tensor& parameter) {
  if (!parameter.requires_grad()) return false;  // it may have nothing of autograd's, hooks neither
  return dynamic_cast<OnArrival*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get()) != nullptr;
}

}  // namespace tessera::zero
