// Layers that keep a state in place of keys and values, row by row. Gated DeltaNet (Yang et al. 2024,
// arXiv:2412.06464):
//
//   queries, keys, values ─▶ convolution, SiLU ─▶ queries and keys of length one ─┐
//   betas, decays ─▶ beta = sigmoid(b), g = exp(-rate * softplus(a + bias)) ──────┤
//                                                                                 ▼
//   of each value head:   u = beta (v - g k S)   o = g q S + (q k) u   S ← g S + k ⊗ u
//                         output = norm(o) * silu(gate)
//
// Mamba-2 (Dao and Gu 2024, arXiv:2405.21060):
//
//   channels ─▶ convolution, SiLU ─▶ values | keys | queries, in their place ─┐
//   steps    ─▶ step = softplus(s + bias), g = exp(-rate * step) ─────────────┤
//                                                                             ▼
//   of each head:    S ← g S + step v ⊗ k    o = S q + skip v    output = norm(o * silu(gate))
//
// A state S lies in panels of 32 features, (features of a head / 32, size, 32): of a DeltaNet's values by
// key features, of a Mamba head by state size. So a panel stays in the first-level cache while a sequence's
// rows go through it, and no sum runs across lanes. Rows are never summed over: a row's numbers are the
// same whichever rows come with it, in a prompt or alone.
//
// A sequence reads its state in one slot and writes it to another, which later rows of the same step
// continue from.
#pragma once

#include <algorithm>
#include <cmath>

#include "activations.h"
#include "convolution.h"
#include "model.h"
#include "simd.h"

namespace helexa {

constexpr int kStateVectors = 2;  // of a panel
constexpr int kStateLanes = kStateVectors * kLanes;
constexpr int kDeltaRows = 64;  // that go through a head's panels together
constexpr float kUnitEpsilon = 1e-6f;

// One member's rows, for one key head and one of its value heads.
struct DeltaScratch {
  Lines<float> queries, keys, values;  // (kDeltaRows, head_dim) each
  float products[kDeltaRows];          // of a row's query and key
  float decays[kDeltaRows], betas[kDeltaRows];

  void reserve(const DeltaNet& d) {
    grow(queries, size_t(kDeltaRows) * d.key_head_dim);
    grow(keys, size_t(kDeltaRows) * d.key_head_dim);
    grow(values, size_t(kDeltaRows) * d.value_head_dim);
  }
};

inline float dot(const float* a, const float* b, int count) {
  f32x16 total{};
  for (int i = 0; i < count; i += kLanes) total += load(a + i) * load(b + i);
  return sum(total);
}

inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// Products of a panel with a row's key and its query. Each sum is made of two, of even and of odd features,
// because an addition waits for the one before.
struct PanelSums {
  f32x16 keyed[2][kStateVectors], queried[2][kStateVectors];

  HELEXA_INLINE PanelSums() {
    for (int odd = 0; odd < 2; odd++)
      for (int v = 0; v < kStateVectors; v++) keyed[odd][v] = queried[odd][v] = f32x16{};
  }
  HELEXA_INLINE void add(int odd, int v, f32x16 state, float key, float query) {
    keyed[odd][v] += state * key;
    queried[odd][v] += state * query;
  }
  HELEXA_INLINE f32x16 by_key(int v) const { return keyed[0][v] + keyed[1][v]; }
  HELEXA_INLINE f32x16 by_query(int v) const { return queried[0][v] + queried[1][v]; }
};

[[gnu::noinline]] inline PanelSums read_panel(const float* state, int key_dim, const float* key,
                                              const float* query) {
  PanelSums sums;
  for (int i = 0; i < key_dim; i += 2)
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 2
      for (int v = 0; v < kStateVectors; v++)
        sums.add(odd, v, load(state + (i + odd) * kStateLanes + v * kLanes), key[i + odd],
                 query[i + odd]);
  return sums;
}

// The state after a row, to `to`; and what the next row, where it `HasNext`, finds in it.
template <bool HasNext>
[[gnu::noinline]] PanelSums update_panel(const float* from, float* to, int key_dim, float decay,
                                         const float* key, const f32x16* learnt, const float* next_key,
                                         const float* next_query) {
  PanelSums sums;
  f32x16 own[kStateVectors];
  for (int v = 0; v < kStateVectors; v++) own[v] = learnt[v];
  for (int i = 0; i < key_dim; i += 2)
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 2
      for (int v = 0; v < kStateVectors; v++) {
        const int at = (i + odd) * kStateLanes + v * kLanes;
        const f32x16 state = load(from + at) * decay + own[v] * key[i + odd];
        store(to + at, state);
        if constexpr (HasNext) sums.add(odd, v, state, next_key[i + odd], next_query[i + odd]);
      }
  return sums;
}

// One layer's rows and states.
class DeltaRows : LayerRows {
 public:
  explicit DeltaRows(const LayerRows& rows)
      : LayerRows(rows), d_(*layer_.delta),
        conv_(batch_.layer_conv_states(layer_, d_.conv_floats())),
        states_(batch_.layer_states(layer_, state_floats())) {}

  // The outputs of the value heads of `key_head` for `count` rows of one sequence from `first` on:
  // `outputs` (count, value_features), of which others are left alone.
  void mix(int first, int count, int key_head, DeltaScratch& scratch, float* outputs) const {
    StateSlots slots = batch_.state_slots(first);
    for (int row = 0; row < count; row += kDeltaRows, slots.from = slots.to) {
      const Piece piece{first + row, std::min(kDeltaRows, count - row), slots.from, slots.to};
      mix_piece(piece, key_head, scratch, outputs + int64_t(row) * d_.value_features());
    }
  }

 private:
  // Rows that are done together, and the slots that they read and write.
  struct Piece {
    int first, count;
    int64_t from, to;
  };

  int64_t state_floats() const { return d_.num_value_heads * d_.head_floats(); }
  void mix_piece(const Piece& piece, int key_head, DeltaScratch& at, float* outputs) const {
    const int key_dim = d_.key_head_dim, first_key = d_.key_features();
    mix_channels(piece, key_head * key_dim, key_dim, at.queries.data());
    mix_channels(piece, first_key + key_head * key_dim, key_dim, at.keys.data());
    const float scale = 1.0f / std::sqrt(float(key_dim));
    for (int r = 0; r < piece.count; r++) {
      float *query = &at.queries[size_t(r) * key_dim], *key = &at.keys[size_t(r) * key_dim];
      make_unit(query, scale);
      make_unit(key, 1.0f);
      at.products[r] = dot(query, key, key_dim);
    }
    for (int i = 0; i < d_.group(); i++) mix_head(piece, d_.value_head(key_head, i), at, outputs);
  }

  void make_unit(float* head, float scale) const {
    const float factor = scale / std::sqrt(sum_of_squares(head, d_.key_head_dim) + kUnitEpsilon);
    for (int i = 0; i < d_.key_head_dim; i++) head[i] *= factor;
  }

  void mix_head(const Piece& piece, int head, DeltaScratch& at, float* outputs) const {
    const int dim = d_.value_head_dim;
    mix_channels(piece, 2 * d_.key_features() + head * dim, dim, at.values.data());
    const int betas = d_.conv_channels() + d_.value_features(), decays = betas + d_.num_value_heads;
    for (int r = 0; r < piece.count; r++) {
      const float* own = row(piece.first + r);
      at.betas[r] = 1.0f / (1.0f + std::exp(-own[betas + head]));
      at.decays[r] = std::exp(-d_.decay_rate[head] * softplus(own[decays + head] + d_.dt_bias[head]));
    }
    const float* from = states_ + piece.from * state_floats() + head * d_.head_floats();
    float* to = states_ + piece.to * state_floats() + head * d_.head_floats();
    for (int lane = 0; lane < dim; lane += kStateLanes) {
      const int64_t panel = int64_t(lane) * d_.key_head_dim;
      go_through(piece.count, from + panel, to + panel, at, lane, outputs + head * dim + lane);
    }
    for (int r = 0; r < piece.count; r++) {
      float* out = outputs + int64_t(r) * d_.value_features() + head * dim;
      finish(out, row(piece.first + r) + d_.conv_channels() + head * dim);
    }
  }

  // `count` rows through one panel of a head's state; `outputs` of those lanes.
  void go_through(int count, const float* from, float* to, const DeltaScratch& at, int lane,
                  float* outputs) const {
    const int key_dim = d_.key_head_dim;
    const float *key = at.keys.data(), *query = at.queries.data();
    const float* value = at.values.data() + lane;
    PanelSums sums = read_panel(from, key_dim, key, query);
    for (int r = 0; r < count; r++, key += key_dim, query += key_dim, value += d_.value_head_dim) {
      const float decay = at.decays[r];
      f32x16 learnt[kStateVectors];
      for (int v = 0; v < kStateVectors; v++) {
        learnt[v] = (load(value + v * kLanes) - sums.by_key(v) * decay) * at.betas[r];
        store(outputs + int64_t(r) * d_.value_features() + v * kLanes,
              sums.by_query(v) * decay + learnt[v] * at.products[r]);
      }
      const float *next_key = key + key_dim, *next_query = query + key_dim;
      if (r + 1 < count)
        sums = update_panel<true>(from, to, key_dim, decay, key, learnt, next_key, next_query);
      else update_panel<false>(from, to, key_dim, decay, key, learnt, nullptr, nullptr);
      from = to;
    }
  }

  void finish(float* out, const float* gate) const {
    const int dim = d_.value_head_dim;
    const float mean = sum_of_squares(out, dim) / float(dim);
    const float factor = 1.0f / std::sqrt(mean + m_.norm_eps);
    for (int i = 0; i < dim; i += kLanes)
      store(out + i, load(out + i) * factor * load(d_.norm + i) * silu(load(gate + i)));
  }

  // `width` channels from `channel` on of the rows, (count, width), and the inputs that the next rows
  // look back at.
  void mix_channels(const Piece& piece, int channel, int width, float* out) const {
    const CausalConv conv{d_.conv_kernel, d_.conv_channels(), d_.conv_weight,
                          conv_ + piece.from * d_.conv_floats(), conv_ + piece.to * d_.conv_floats()};
    for (int i = 0; i < width; i += kLanes)
      convolve(conv, channel + i, piece.count,
               [&](int r) { return load(row(piece.first + r) + channel + i); },
               [&](int r, f32x16 total) { store(out + int64_t(r) * width + i, silu(total)); });
  }

  const DeltaNet& d_;
  float *const conv_, *const states_;
};

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
class MambaRows : LayerRows {
 public:
  explicit MambaRows(const LayerRows& rows)
      : LayerRows(rows), own_(*layer_.mamba),
        conv_(batch_.layer_conv_states(layer_, own_.conv_floats())),
        states_(batch_.layer_states(layer_, own_.state_floats())) {}

  int num_conv_tasks() const { return (own_.conv_channels() + kConvTaskLanes - 1) / kConvTaskLanes; }

  // The channels of `task`, of `count` rows of one sequence from `first` on, where they are.
  void mix_channels(int first, int count, int task) const {
    const StateSlots slots = batch_.state_slots(first);
    const CausalConv conv{own_.conv_kernel, own_.conv_channels(), own_.conv_weight,
                          conv_ + slots.from * own_.conv_floats(), conv_ + slots.to * own_.conv_floats()};
    const int end = std::min(own_.conv_channels(), (task + 1) * kConvTaskLanes);
    for (int i = task * kConvTaskLanes; i < end; i += kLanes) {
      float* rows = row(first) + own_.features() + i;
      const f32x16 bias = own_.conv_bias ? load(own_.conv_bias + i) : f32x16{};
      convolve(conv, i, count, [&](int r) { return load(rows + int64_t(r) * stride_); },
               [&](int r, f32x16 total) { store(rows + int64_t(r) * stride_, silu(total + bias)); });
    }
  }

  // A head's output for those rows, before its norm: `outputs` (count, features), of which others are
  // left alone.
  void scan(int first, int count, int head, float* outputs) const {
    const StateSlots slots = batch_.state_slots(first);
    const int dim = own_.head_dim, size = own_.state_size;
    const float* from = states_ + slots.from * own_.state_floats() + head * own_.head_floats();
    float* to = states_ + slots.to * own_.state_floats() + head * own_.head_floats();
    for (int r = 0; r < count; r++, from = to) {
      const float* own = row(first + r);
      const float* values = own + own_.features() + head * dim;
      const float* key = own + 2 * own_.features() + head / own_.heads_per_group() * size;
      const float step = softplus(own[own_.row_width() - own_.num_heads + head] + own_.step_bias[head]);
      const float decay = std::exp(-own_.decay_rate[head] * step), skip = own_.skip[head];
      float* out = outputs + int64_t(r) * own_.features() + head * dim;
      for (int lane = 0; lane < dim; lane += kStateLanes) {
        f32x16 given[kStateVectors], stepped[kStateVectors], found[kStateVectors];
        for (int v = 0; v < kStateVectors; v++) {
          given[v] = load(values + lane + v * kLanes);
          stepped[v] = given[v] * step;
        }
        const int64_t panel = int64_t(lane) * size;
        scan_panel(from + panel, to + panel, size, decay, stepped, key, key + own_.group_features(), found);
        for (int v = 0; v < kStateVectors; v++)
          store(out + lane + v * kLanes, found[v] + given[v] * skip);
      }
    }
  }

  // Gates and norms the outputs of all heads of a group for a row, in place.
  void finish(int index, int group, float* outputs) const {
    const int width = own_.features() / own_.num_groups, first = group * width;
    const float* gates = row(index) + first;
    float* out = outputs + first;
    for (int i = 0; i < width; i += kLanes) store(out + i, load(out + i) * silu(load(gates + i)));
    const float mean = sum_of_squares(out, width) / float(width);
    const float factor = 1.0f / std::sqrt(mean + m_.norm_eps);
    for (int i = 0; i < width; i += kLanes)
      store(out + i, load(out + i) * factor * load(own_.norm + first + i));
  }

 private:
  const Mamba& own_;
  float *const conv_, *const states_;
};

}  // namespace helexa
