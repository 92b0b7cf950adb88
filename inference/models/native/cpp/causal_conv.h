// A causal convolution of each channel by itself over a few rows of a sequence, sixteen channels at a
// time, their last inputs in registers.
#pragma once

#include <cstdint>

#include "simd.h"

namespace helexa {

constexpr int kMostConvRows = 4;
constexpr int kConvTaskLanes = 16 * kLanes;  // channels that a member takes at a time

struct CausalConv {
  int kernel;            // how many rows it looks at, its own included
  int64_t channels;
  const float* weight;   // (kernel, channels)
  const float* before;   // (kernel - 1, channels) inputs of the rows before
  float* after;          // the same of the rows that follow; may be `before`
};

// Sixteen channels from `channel` on of `count` rows: `read` gives a row's inputs, `write` takes what
// comes out.
template <int Kernel, typename Read, typename Write>
HELEXA_INLINE void convolve_by(const CausalConv& conv, int channel, int count, Read read, Write write) {
  static_assert(Kernel <= kMostConvRows);
  f32x16 window[Kernel], weights[Kernel];
  for (int k = 0; k < Kernel; k++) weights[k] = load(conv.weight + k * conv.channels + channel);
  for (int k = 0; k + 1 < Kernel; k++) window[k] = load(conv.before + k * conv.channels + channel);
  for (int r = 0; r < count; r++) {
    window[Kernel - 1] = read(r);
    f32x16 total = window[0] * weights[0];
    for (int k = 1; k < Kernel; k++) total += window[k] * weights[k];
    write(r, total);
    for (int k = 0; k + 1 < Kernel; k++) window[k] = window[k + 1];
  }
  for (int k = 0; k + 1 < Kernel; k++) store(conv.after + k * conv.channels + channel, window[k]);
}

template <typename Read, typename Write>
void convolve(const CausalConv& conv, int channel, int count, Read read, Write write) {
  switch (conv.kernel) {
    case 2: return convolve_by<2>(conv, channel, count, read, write);
    case 3: return convolve_by<3>(conv, channel, count, read, write);
    case 4: return convolve_by<4>(conv, channel, count, read, write);
  }
}

}  // namespace helexa
