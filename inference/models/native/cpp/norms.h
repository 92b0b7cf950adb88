// Norms of rows: by their root mean square, or by their mean and deviation.
#pragma once

#include <algorithm>
#include <cmath>

#include "model.h"
#include "simd.h"

namespace helexa {

// `in` may be `out`.
inline void rms_norm_row(const float* in, const float* weight, int width, float eps, float* out) {
  const float total = sum_of_squares(in, width);
  const float factor = 1.0f / std::sqrt(total / float(width) + eps);
  for (int i = 0; i < width; i++) out[i] = in[i] * factor * weight[i];
}

// In double: a mean is subtracted from what may be much smaller than it.
inline void layer_norm_row(const float* in, const Norm& norm, int width, float eps, float* out) {
  double total = 0, squares = 0;
  for (int i = 0; i < width; i++) total += in[i];
  const double mean = total / width;
  for (int i = 0; i < width; i++) squares += (in[i] - mean) * (in[i] - mean);
  const float middle = float(mean), factor = float(1.0 / std::sqrt(squares / width + double(eps)));
  for (int i = 0; i < width; i++)
    out[i] = (in[i] - middle) * factor * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
}

// As wide as the model.
inline void norm_row(const Model& m, const Norm& norm, const float* in, float* out) {
  if (!norm.weight) std::copy_n(in, in == out ? 0 : m.hidden_size, out);
  else if (m.norm_kind == kLayerNorm) layer_norm_row(in, norm, m.hidden_size, m.norm_eps, out);
  else rms_norm_row(in, norm.weight, m.hidden_size, m.norm_eps, out);
}

}  // namespace helexa
