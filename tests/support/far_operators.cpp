#include "tests/support/far_operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/far_memory.h"
#include "tests/support/far_stream.h"

namespace tessera::test {
namespace {

using Values = std::vector<c10::IValue>;
using OfTensor = std::function<at::Tensor(const at::Tensor&)>;

c10::IValue with_tensors(const c10::IValue& value, const OfTensor& of) {
  if (value.isTensor()) return of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(of(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      list.push_back(each ? std::optional(of(*each)) : std::nullopt);
    }
    return list;
  }
  return value;
}

void for_tensors(const c10::IValue& value, const std::function<void(const at::Tensor&)>& take) {
  with_tensors(value, [&](const at::Tensor& tensor) {
    if (tensor.defined()) take(tensor);
    return tensor;
  });
}

// From the first element to the last.
int64_t numel_between_ends(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return last + 1;
}

FarAccess access_of(const at::Tensor& tensor, bool writes) {
  if (tensor.numel() == 0) return {nullptr, 0, writes};
  return {tensor.const_data_ptr(), static_cast<size_t>(numel_between_ends(tensor)) * tensor.element_size(), writes};
}

// The arguments of one call, and their images near.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) : op_(op) {
    const auto& arguments = op.schema().arguments();
    const auto first = stack.end() - static_cast<std::ptrdiff_t>(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = arguments[i].alias_info();
      const bool writes = alias != nullptr && alias->isWrite();
      far_.push_back(first[static_cast<std::ptrdiff_t>(i)]);
      near_.push_back(near(far_.back(), writes));
    }
  }

  // A GPU's host waits for these.
  bool needs_values() const {
    if (op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape)) return true;
    const auto& returns = op_.schema().returns();
    return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
      const auto& type = *result.type();
      return type.kind() != c10::TypeKind::TensorType && type.kind() != c10::TypeKind::ListType;
    });
  }

  Values run_at_once(bool waits) {
    Values stack = near_;
    run_far(
        current_far_stream(), name(), accesses_, [&] { op_.callBoxed(&stack); }, waits);
    for (c10::IValue& result : stack) {
      result =
          with_tensors(result, [&](const at::Tensor& tensor) { return far_of_result(tensor, near_tensors_, true); });
    }
    return stack;
  }

  // The results, as far as they are known without the values of the arguments: what they look like.
  std::optional<Values> results_without_values() {
    Values written;
    for (const c10::Argument& result : op_.schema().returns()) {
      if (const auto argument = argument_that_is(result)) written.push_back(far_[*argument]);
    }
    return written.size() == op_.schema().returns().size() ? written : run_on_zeros();
  }

  void enqueue(const Values& results) {
    std::vector<at::Tensor> made;  // near
    for (const c10::IValue& result : results) {
      for_tensors(result, [&](const at::Tensor& tensor) {
        const bool is_argument = std::any_of(far_tensors_.begin(), far_tensors_.end(),
                                             [&](const at::Tensor& argument) { return argument.is_same(tensor); });
        made.push_back(is_argument ? at::Tensor() : near_of(tensor));
        if (!is_argument) accesses_.push_back(access_of(tensor, /*writes=*/true));
      });
    }
    enqueue_far(current_far_stream(), name(), accesses_, [op = op_, stack = near_, made]() mutable {
      const at::NoGradGuard no_grad;
      op.callBoxed(&stack);
      size_t next = 0;
      for (const c10::IValue& result : stack) {
        for_tensors(result, [&](const at::Tensor& tensor) {
          const at::Tensor& to = made[next++];
          if (to.defined()) to.copy_(tensor);
        });
      }
    });
  }

 private:
  const std::string& name() const { return op_.schema().name(); }

  c10::IValue near(const c10::IValue& value, bool writes) {
    if (value.isDevice()) return at::Device(at::kCPU);
    return with_tensors(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      if (tensor.is_cpu()) {
        TORCH_CHECK(tensor.dim() == 0, name(), ": tensors are on two devices, the CPU and the far one");
        return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : tensor.clone();
      }
      far_tensors_.push_back(tensor);
      near_tensors_.push_back(near_of(tensor));
      accesses_.push_back(access_of(tensor, writes));
      return near_tensors_.back();
    });
  }

  // As of an operator that works in place.
  std::optional<size_t> argument_that_is(const c10::Argument& result) const {
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto *const one = arguments[i].alias_info(), *const other = result.alias_info();
      if (one != nullptr && other != nullptr && one->isWrite() && *one == *other) return i;
    }
    return std::nullopt;
  }

  std::optional<Values> run_on_zeros() {
    Values stack;
    std::vector<at::Tensor> zeros;
    size_t next = 0;
    for (const c10::IValue& value : near_) {
      stack.push_back(with_tensors(value, [&](const at::Tensor& tensor) {
        if (next == near_tensors_.size() || !tensor.is_same(near_tensors_[next])) return tensor;
        ++next;
        zeros.push_back(zeros_like(tensor));
        return zeros.back();
      }));
    }
    try {
      op_.callBoxed(&stack);
    } catch (const std::exception&) {
      return std::nullopt;
    }
    for (c10::IValue& result : stack) {
      result = with_tensors(result, [&](const at::Tensor& tensor) { return far_of_result(tensor, zeros, false); });
    }
    return stack;
  }

  static at::Tensor zeros_like(const at::Tensor& near) {
    return at::zeros({numel_between_ends(near)}, near.options()).as_strided(near.sizes(), near.strides(), 0);
  }

  // `arguments`: those of the call that made it.
  at::Tensor far_of_result(const at::Tensor& result, const std::vector<at::Tensor>& arguments, bool with_values) const {
    if (!result.defined()) return result;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].is_same(result)) return far_tensors_[i];
      TORCH_CHECK(result.numel() == 0 || !result.storage().is_alias_of(arguments[i].storage()), name(),
                  " makes views: give it a kernel");
    }
    at::Tensor moved = at::empty_strided(result.sizes(), result.strides(), result.options().device(kFarDevice));
    if (with_values) near_of(moved).copy_(result);
    return moved;
  }

  const c10::OperatorHandle op_;
  Values far_, near_;
  std::vector<at::Tensor> far_tensors_, near_tensors_;
  std::vector<FarAccess> accesses_;
};

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, *stack);
  Values results;
  if (call.needs_values()) {
    results = call.run_at_once(/*waits=*/true);
  } else if (!is_far_late() || op.hasTag(at::Tag::nondeterministic_seeded)) {
    results = call.run_at_once(/*waits=*/false);
  } else if (const auto known = call.results_without_values()) {
    call.enqueue(*known);
    results = *known;
  } else {
    results = call.run_at_once(/*waits=*/true);
  }
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->insert(stack->end(), results.begin(), results.end());
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  std::vector<FarAccess> accesses;
  std::vector<c10::Storage> held;  // as the allocator of pinned memory of a GPU holds it until the copy has passed
  bool within_device = true, may_be_late = true;
  const auto near = [&](const at::Tensor& tensor, bool writes) {
    if (!tensor.is_cpu()) {
      accesses.push_back(access_of(tensor, writes));
      return near_of(tensor);
    }
    within_device = false;
    const bool pinned = tensor.numel() > 0 && is_pinned(tensor.const_data_ptr());
    if (pinned) accesses.push_back(access_of(tensor, writes));
    if (pinned) held.push_back(tensor.storage());
    may_be_late = may_be_late && non_blocking && pinned;
    return tensor.detach();
  };
  const at::Tensor near_from = near(from, false), near_to = near(to, true);
  const auto work = [near_from, near_to, held] {
    const at::NoGradGuard no_grad;
    near_to.copy_(near_from);
  };
  if (is_far_late() && may_be_late) {
    enqueue_far(current_far_stream(), "copy_", accesses, work);
  } else {
    run_far(current_far_stream(), "copy_", accesses, work, /*waits=*/!may_be_late);
  }
  return to;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &far_memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &far_memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}

}  // namespace

void register_far_operators() {
  static torch::Library all(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("copy_", &copy);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("record_stream",
            [](at::Tensor& self, c10::Stream stream) { keep_for_stream(self.storage().data(), stream.id()); });
  aten.impl("_has_compatible_shallow_copy_type", [](const at::Tensor&, const at::Tensor&) { return true; });
}

}  // namespace tessera::test
