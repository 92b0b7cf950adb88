// A gated convolution over a few rows (LFM2), row by row:
//
//   before, after, values ─▶ before * values ─▶ convolution ─▶ after * (it + bias)
//
// What a sequence keeps are the last rows that went into the convolution. It reads them in one slot and
// writes them to another, which later rows of the same step go on from.
#pragma once

#include <algorithm>

#include "causal_conv.h"
#include "model.h"
#include "simd.h"

namespace helexa {

// One layer's rows and states.
class ShortConvRows {
 public:
  // `rows` of the whole batch, `stride` apart, as the layer's `qkv` gave them.
  ShortConvRows(const ShortConv& conv, const Batch& batch, int layer, const float* rows, int stride)
      : c_(conv), batch_(batch), rows_(rows), stride_(stride),
        states_(batch.conv_states + layer * batch.num_state_slots * conv.conv_floats()) {}

  int num_tasks() const { return (c_.channels + kConvTaskLanes - 1) / kConvTaskLanes; }

  // The channels of `task`, of `count` rows of one sequence from `first` on: `outputs` (count,
  // channels), of which others are left alone.
  void mix(int first, int count, int task, float* outputs) const {
    const StateSlots slots = batch_.state_slots(first);
    const CausalConv conv{c_.kernel, c_.channels, c_.weight, states_ + slots.from * c_.conv_floats(),
                          states_ + slots.to * c_.conv_floats()};
    const int end = std::min(c_.channels, (task + 1) * kConvTaskLanes);
    for (int i = task * kConvTaskLanes; i < end; i += kLanes) {
      const float* rows = rows_ + int64_t(first) * stride_ + i;
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
  const Batch& batch_;
  const float* const rows_;
  const int stride_;
  float* const states_;
};

}  // namespace helexa
