// Mamba-2 (Dao and Gu 2024, arXiv:2405.21060) of a batch's rows, row by row:
//
//   channels ─▶ convolution, SiLU ─▶ values | keys | queries, in their place ─┐
//   steps    ─▶ step = softplus(s + bias), g = exp(-rate * step) ─────────────┤
//                                                                             ▼
//   of each head:    S ← g S + step v ⊗ k    o = S q + skip v    output = norm(o * silu(gate))
//
// A state S lies in panels of 32 features of its head, (head_dim / 32, state_size, 32), so that a panel
// stays in the first-level cache while a sequence's rows go through it, and no sum runs across lanes.
// Rows are never summed over: a row's numbers are the same whichever rows come with it.
//
// A sequence reads its state in one slot and writes it to another, which later rows of the same step
// go on from.
#pragma once

#include <algorithm>
#include <cmath>

#include "convolution.h"
#include "delta_net.h"
#include "model.h"
#include "simd.h"

namespace helexa {

// The state after a row, to `to`, and what the row's query reads of it. Each sum is made of two, of even
// and of odd features, because an addition waits for the one before.
[[gnu::noinline]] inline void scan_panel(const float* from, float* to, int size, float decay,
                                         const f32x16* values, const float* key, const float* query,
                                         f32x16* found) {
  f32x16 sums[2][kStateVectors] = {}, own[kStateVectors];
  for (int v = 0; v < kStateVectors; v++) own[v] = values[v];
  for (int n = 0; n < size; n += 2)
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 2
      for (int v = 0; v < kStateVectors; v++) {
        const int at = (n + odd) * kStateLanes + v * kLanes;
        const f32x16 state = load(from + at) * decay + own[v] * key[n + odd];
        store(to + at, state);
        sums[odd][v] += state * query[n + odd];
      }
  for (int v = 0; v < kStateVectors; v++) found[v] = sums[0][v] + sums[1][v];
}

// One layer's rows and states.
class MambaRows {
 public:
  // `rows` of the whole batch, `stride` apart, as the layer's `qkv` gave them.
  MambaRows(const Mamba& mamba, const Batch& batch, int layer, float norm_eps, float* rows, int stride)
      : m_(mamba), batch_(batch), norm_eps_(norm_eps), rows_(rows), stride_(stride),
        conv_(batch.conv_states + layer * batch.num_state_slots * mamba.conv_floats()),
        states_(batch.states + layer * batch.num_state_slots * mamba.state_floats()) {}

  int num_conv_tasks() const { return (m_.conv_channels() + kConvTaskLanes - 1) / kConvTaskLanes; }

  // The channels of `task`, of `count` rows of one sequence from `first` on, where they are.
  void mix_channels(int first, int count, int task) const {
    const StateSlots slots = batch_.state_slots(first);
    const CausalConv conv{m_.conv_kernel, m_.conv_channels(), m_.conv_weight,
                          conv_ + slots.from * m_.conv_floats(), conv_ + slots.to * m_.conv_floats()};
    const int end = std::min(m_.conv_channels(), (task + 1) * kConvTaskLanes);
    for (int i = task * kConvTaskLanes; i < end; i += kLanes) {
      float* rows = row(first) + m_.features() + i;
      const f32x16 bias = m_.conv_bias ? load(m_.conv_bias + i) : f32x16{};
      convolve(conv, i, count, [&](int r) { return load(rows + int64_t(r) * stride_); },
               [&](int r, f32x16 total) { store(rows + int64_t(r) * stride_, silu(total + bias)); });
    }
  }

  // What a head says to those rows, before it is normed: `outputs` (count, features), of which others
  // are left alone.
  void scan(int first, int count, int head, float* outputs) const {
    const StateSlots slots = batch_.state_slots(first);
    const int dim = m_.head_dim, size = m_.state_size;
    const float* from = states_ + slots.from * m_.state_floats() + head * m_.head_floats();
    float* to = states_ + slots.to * m_.state_floats() + head * m_.head_floats();
    for (int r = 0; r < count; r++, from = to) {
      const float* own = row(first + r);
      const float* values = own + m_.features() + head * dim;
      const float* key = own + 2 * m_.features() + head / m_.heads_per_group() * size;
      const float step = softplus(own[m_.row_width() - m_.num_heads + head] + m_.dt_bias[head]);
      const float decay = std::exp(-m_.decay_rate[head] * step), skip = m_.skip[head];
      float* out = outputs + int64_t(r) * m_.features() + head * dim;
      for (int lane = 0; lane < dim; lane += kStateLanes) {
        f32x16 given[kStateVectors], stepped[kStateVectors], found[kStateVectors];
        for (int v = 0; v < kStateVectors; v++) {
          given[v] = load(values + lane + v * kLanes);
          stepped[v] = given[v] * step;
        }
        const int64_t panel = int64_t(lane) * size;
        scan_panel(from + panel, to + panel, size, decay, stepped, key, key + m_.group_features(), found);
        for (int v = 0; v < kStateVectors; v++)
          store(out + lane + v * kLanes, found[v] + given[v] * skip);
      }
    }
  }

  // What all heads of a group said to a row, gated and normed in place.
  void finish(int index, int group, float* outputs) const {
    const int width = m_.features() / m_.num_groups, first = group * width;
    const float* gates = row(index) + first;
    float* out = outputs + first;
    for (int i = 0; i < width; i += kLanes) store(out + i, load(out + i) * silu(load(gates + i)));
    const float mean = sum_of_squares(out, width) / float(width);
    const float factor = 1.0f / std::sqrt(mean + norm_eps_);
    for (int i = 0; i < width; i += kLanes)
      store(out + i, load(out + i) * factor * load(m_.norm + first + i));
  }

 private:
  float* row(int row) const { return rows_ + int64_t(row) * stride_; }

  const Mamba& m_;
  const Batch& batch_;
  const float norm_eps_;
  float* const rows_;
  const int stride_;
  float *const conv_, *const states_;
};

}  // namespace helexa
