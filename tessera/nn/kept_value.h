// What an autograd function keeps for backward beside tensors and numbers, among its context's saved_data.
#pragma once

#include <ATen/core/ivalue.h>

#include <utility>

namespace tessera::nn {

template <class T>
struct KeptValue : torch::CustomClassHolder {
  explicit KeptValue(T kept) : value(std::move(kept)) {}
  T value;
};

template <class T>
c10::IValue keep(T value) {
  return c10::IValue::make_capsule(c10::make_intrusive<KeptValue<T>>(std::move(value)));
}

// A copy of what keep() was given, of the same type.
template <class T>
T kept(const c10::IValue& saved) {
  return static_cast<KeptValue<T>*>(saved.toCapsule().get())->value;
}

}  // namespace tessera::nn
