// An MLP's activation, and its gates where it has them.
#pragma once

#include "model.h"
#include "simd.h"

namespace helexa {

// Vectors [first, last) of one row: out = activation(gates) * ups, or activation(ups) where there are
// no gates. `gate_up`: a row of gates, where the model has them, and then ups. intermediate_size is a
// multiple of kLanes.
inline void gate_row(const Model& m, const float* gate_up, int first, int last, float* out) {
  const float* ups = m.is_gated ? gate_up + m.intermediate_size : nullptr;
  const auto activate = [&](auto activation) {
    for (int i = first * kLanes; i < last * kLanes; i += kLanes) {
      const f32x16 active = activation(load(gate_up + i));
      store(out + i, ups ? active * load(ups + i) : active);
    }
  };
  if (m.activation == kGeluTanh) activate([](f32x16 x) { return gelu_tanh(x); });
  else activate([](f32x16 x) { return silu(x); });
}

}  // namespace helexa
