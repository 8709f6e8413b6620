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
// Block announces when it is called, alone, in a ModuleList or in a Sequential.
//
// A module's forward may return a tensor, an optional, pair, tuple, vector or array of tensors, nested as needed, or a
// struct with a method  `template <class F> void for_each_tensor(F f)`. It must return every tensor through which
// gradients flow back into the module.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any_module_holder.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
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
  using AnnouncesItsForward = void;  // by which holders know it

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

// Holders of UnitModules, as TORCH_MODULE makes them, and the boxes of a Sequential. LibTorch's own call the module's
// forward directly, so that nobody would hear of it: here are both for UnitModules alone, the same but for that.
namespace tessera::nn::detail {

template <class Module>
concept AnnouncesItsForward = requires { typename Module::AnnouncesItsForward; };

}  // namespace tessera::nn::detail

namespace torch::nn {

// The members of LibTorch's primary template (torch/nn/pimpl.h), with its rules for what is constructed from what.
template <tessera::nn::detail::AnnouncesItsForward Contained>
class ModuleHolder<Contained> : torch::detail::ModuleHolderIndicator {
 protected:
  std::shared_ptr<Contained> impl_;

 public:
  using ContainedType = Contained;

  ModuleHolder() : impl_(std::make_shared<Contained>()) {}
  ModuleHolder(std::nullptr_t) {}
  ModuleHolder(std::shared_ptr<Contained> module) : impl_(std::move(module)) {}
  template <class Head, class... Tail>
    requires(sizeof...(Tail) > 0 || !torch::detail::is_module_holder_of<Head, Contained>::value)
  explicit ModuleHolder(Head&& head, Tail&&... tail)
      : impl_(new Contained(std::forward<Head>(head), std::forward<Tail>(tail)...)) {}

  bool is_empty() const noexcept { return impl_ == nullptr; }
  explicit operator bool() const noexcept { return !is_empty(); }
  Contained* operator->() { return get(); }
  const Contained* operator->() const { return get(); }
  Contained& operator*() { return *get(); }
  const Contained& operator*() const { return *get(); }
  Contained* get() { return ptr().get(); }
  const Contained* get() const { return ptr().get(); }
  const std::shared_ptr<Contained>& ptr() const {
    TORCH_CHECK(!is_empty(), "Accessing empty ModuleHolder");
    return impl_;
  }

  template <class... Args>
  auto operator()(Args&&... args) {
    return tessera::nn::UnitModuleBase::announced_forward(*get(), std::forward<Args>(args)...);
  }
  template <class Arg>
  auto operator[](Arg&& arg) {
    return (*get())[std::forward<Arg>(arg)];
  }
};

// What an AnyModule, and so a Sequential, keeps of a module whose forward takes Arguments.
template <tessera::nn::detail::AnnouncesItsForward Contained, class... Arguments>
struct AnyModuleHolder<Contained, Arguments...> : AnyModulePlaceholder {
  explicit AnyModuleHolder(std::shared_ptr<Contained>&& held)
      : AnyModulePlaceholder(typeid(Contained)), module(std::move(held)) {}

  AnyValue forward(std::vector<AnyValue>&& given) override {
    if (module->_forward_has_default_args() && given.size() >= module->_forward_num_required_args() &&
        given.size() <= sizeof...(Arguments)) {
      given = module->_forward_populate_default_args(std::move(given));
    }
    TORCH_CHECK(given.size() == sizeof...(Arguments), c10::demangle(type_info.name()), "'s forward() takes ",
                sizeof...(Arguments), " arguments, but received ", given.size(),
                "; defaults need FORWARD_HAS_DEFAULT_ARGS");
    return call(given, std::index_sequence_for<Arguments...>());
  }

  std::shared_ptr<Module> ptr() override { return module; }
  std::unique_ptr<AnyModulePlaceholder> copy() const override { return std::make_unique<AnyModuleHolder>(*this); }
  std::unique_ptr<AnyModulePlaceholder> clone_module(std::optional<Device> device) const override {
    return std::make_unique<AnyModuleHolder>(std::dynamic_pointer_cast<Contained>(module->clone(device)));
  }

  std::shared_ptr<Contained> module;

 private:
  template <size_t... Index>
  AnyValue call(std::vector<AnyValue>& given, std::index_sequence<Index...>) {
    return AnyValue(
        tessera::nn::UnitModuleBase::announced_forward(*module, std::move(argument<Arguments>(given, Index))...));
  }

  template <class Argument>
  std::decay_t<Argument>& argument(std::vector<AnyValue>& given, size_t index) {
    auto* const value = given[index].template try_get<std::decay_t<Argument>>();
    TORCH_CHECK(value != nullptr, "Expected argument #", index, " of ", c10::demangle(type_info.name()),
                "'s forward() to be of type ", c10::demangle(typeid(Argument).name()), ", but received ",
                c10::demangle(given[index].type_info().name()));
    return *value;
  }
};

}  // namespace torch::nn
