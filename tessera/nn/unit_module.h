// Modules that announce when their forward begins and ends, so that an engine can gather and release their parameters.
// They know nothing of what it does.
//
//   class Block : public nn::UnitModule<Block> {
//    public:
//     at::Tensor forward(const at::Tensor& hidden, const at::Tensor& mask);
//   };
//   hidden = block(hidden, mask);       // announces; block.forward(hidden, mask) alone would not
//
// Through a holder it is the same: with class BlockImpl : public nn::UnitModule<BlockImpl> and TORCH_MODULE(Block), a
// Block announces when it is called, alone, in a ModuleList or in a Sequential (unit_module_holder.h).
//
// A module's forward may return a tensor, an optional, pair, tuple, vector or array of tensors, nested as needed, or a
// struct with a method  `template <class F> void for_each_tensor(F f)`. It must return every tensor through which
// gradients flow back into the module.
#pragma once

#include <torch/nn/module.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera::nn {

// Who listens. `module` is the number that the listener gave the module.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  virtual void before_forward(size_t module, const std::vector<at::Tensor>& inputs) = 0;
  virtual void after_forward(size_t module, const std::vector<at::Tensor>& outputs) = 0;
};

namespace detail {

template <class T>
concept ListsTensors = requires(const T& value) { value.for_each_tensor([](const at::Tensor&) {}); };

template <class>
inline constexpr bool kUnsupported = false;

inline void collect(std::vector<at::Tensor>& into, const at::Tensor& value) { into.push_back(value); }
template <class T>
void collect(std::vector<at::Tensor>& into, const T& value);
template <class T>
void collect(std::vector<at::Tensor>& into, const std::optional<T>& value) {
  if (value) collect(into, *value);
}
template <class T>
void collect(std::vector<at::Tensor>& into, const std::vector<T>& values) {
  for (const T& value : values) collect(into, value);
}
template <class T, size_t N>
void collect(std::vector<at::Tensor>& into, const std::array<T, N>& values) {
  for (const T& value : values) collect(into, value);
}
template <class A, class B>
void collect(std::vector<at::Tensor>& into, const std::pair<A, B>& values) {
  collect(into, values.first);
  collect(into, values.second);
}
template <class... T>
void collect(std::vector<at::Tensor>& into, const std::tuple<T...>& values) {
  std::apply([&into](const T&... value) { (collect(into, value), ...); }, values);
}
template <class T>
void collect(std::vector<at::Tensor>& into, const T& value) {
  if constexpr (ListsTensors<T>) {
    value.for_each_tensor([&into](const at::Tensor& tensor) { into.push_back(tensor); });
  } else {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>,
                  "give the type a method for_each_tensor(f), so that the engine sees the tensors in it");
  }
}

}  // namespace detail

// All tensors in the values, in order.
template <class... T>
std::vector<at::Tensor> tensors_in(const T&... values) {
  std::vector<at::Tensor> tensors;
  (detail::collect(tensors, values), ...);
  return tensors;
}

// The part of a UnitModule that does not depend on its forward's type: what an engine looks for in a module tree.
class UnitModuleBase : public torch::nn::Module {
 public:
  using AnnouncesItsForward = void;  // by which unit_module_holder.h knows it

  // `observer` is borrowed until it is replaced; null: announce to nobody.
  void set_observer(UnitObserver* observer, size_t module_number) {
    observer_ = observer;
    module_number_ = module_number;
  }

  // module.forward(args…), announced.
  template <class Module, class... Args>
  static auto announced_forward(Module& module, Args&&... args) {
    const UnitModuleBase& base = module;
    if (base.observer_ == nullptr) return module.forward(std::forward<Args>(args)...);
    base.observer_->before_forward(base.module_number_, tensors_in(args...));
    auto output = module.forward(std::forward<Args>(args)...);
    base.observer_->after_forward(base.module_number_, tensors_in(output));
    return output;
  }

 protected:
  UnitObserver* observer_ = nullptr;
  size_t module_number_ = 0;
};

template <class Derived>
class UnitModule : public UnitModuleBase {
 public:
  template <class... Args>
  auto operator()(Args&&... args) {
    return announced_forward(static_cast<Derived&>(*this), std::forward<Args>(args)...);
  }
};

}  // namespace tessera::nn

#include "tessera/nn/unit_module_holder.h"
