// Holders of UnitModules, as TORCH_MODULE makes them, and the boxes of a Sequential. LibTorch's own call the module's
// forward directly, so that nobody would hear of it: here are both for UnitModules alone, the same but for that.
// Included by unit_module.h, so that wherever there is a UnitModule, every source means the same holder by its name.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any_module_holder.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

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
