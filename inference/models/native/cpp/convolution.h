// Causal convolutions of each channel by itself over a few rows of a sequence, sixteen channels at a
// time, their last inputs in registers; and the layer that has one in place of attention (LFM2), row by row:
//
//   before, after, values ─▶ before * values ─▶ convolution ─▶ after * (it + bias)
//
// A sequence keeps the last rows that went into the convolution. It reads them in one slot and
// writes them to another, which later rows of the same step continue from.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model.h"
#include "simd.h"

namespace helexa {

constexpr int kMostConvRows = 4;
constexpr int kConvTaskLanes = 16 * kLanes;  // channels that a member takes at a time

struct CausalConv {
  int kernel;            // rows that it reads, its own included
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

// One layer's rows and states.
class ShortConvRows : LayerRows {
 public:
  explicit ShortConvRows(const LayerRows& rows)
      : LayerRows(rows), c_(*layer_.conv), states_(batch_.layer_conv_states(layer_, c_.conv_floats())) {}

  int num_tasks() const { return (c_.channels + kConvTaskLanes - 1) / kConvTaskLanes; }

  // The channels of `task`, of `count` rows of one sequence from `first` on: `outputs` (count,
  // channels), of which others are left alone.
  void mix(int first, int count, int task, float* outputs) const {
    const StateSlots slots = batch_.state_slots(first);
    const CausalConv conv{c_.kernel, c_.channels, c_.weight, states_ + slots.from * c_.conv_floats(),
                          states_ + slots.to * c_.conv_floats()};
    const int end = std::min(c_.channels, (task + 1) * kConvTaskLanes);
    for (int i = task * kConvTaskLanes; i < end; i += kLanes) {
      const float* rows = row(first) + i;
      const f32x16 bias = c_.bias ? load(c_.bias + i) : f32x16{};
      const auto read = [&](int r) {
        const float* row = rows + int64_t(r) * stride_;
        return load(row) * load(row + 2 * c_.channels);
      };
      const auto write = [&](int r, f32x16 total) {
        const f32x16 after = load(rows + int64_t(r) * stride_ + c_.channels);
        store(outputs + int64_t(r) * c_.channels + i, after * (total + bias));
      };
      convolve(conv, i, count, read, write);
    }
  }

 private:
  const ShortConv& c_;
  float* const states_;
};

}  // namespace helexa
