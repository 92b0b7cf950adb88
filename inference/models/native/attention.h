// Attention of a tile of queries over one sequence's blocks: the online softmax of Flash Attention
// (Dao et al. 2022, arXiv:2205.14135), one KV block at a time.
//
// Keys lie transposed within their block, so that one vector holds one feature of sixteen tokens
// and scores need no sum across lanes; values lie token by token. As bfloat16 both come in pairs,
// neighbouring features of a key, neighbouring tokens of a value, because that is what the CPU's
// bfloat16 dot product multiplies:
//
//             float                         bfloat16
//   keys      (head_dim, kBlockTokens)      (head_dim / 2, kBlockTokens, 2)
//   values    (kBlockTokens, head_dim)      (kBlockTokens / 2, head_dim, 2)
//
// each for every (block, kv head).
//
// Blocks are visited in order of position and a masked token weighs exactly zero, so a query's
// result does not depend on which other queries share its tile.
#pragma once

#include "simd.h"

namespace helexa {

constexpr int kBlockTokens = 32;
constexpr int kTileQueries = 24;
constexpr int kStripe = 6;  // queries that share one pass over a block: 12 accumulators
constexpr int kMaxHeadDim = 256;
constexpr float kNoScore = -1e30f;  // a running maximum before the first score

struct QueryTile {
  int count;
  float queries[kTileQueries][kMaxHeadDim];  // rotated and scaled by 1 / sqrt(head_dim)
  float outputs[kTileQueries][kMaxHeadDim];
  int positions[kTileQueries];
  float maxima[kTileQueries];
  float totals[kTileQueries][kLanes];  // to be summed over the lanes at the end
  float weights[kTileQueries][kBlockTokens];
  uint32_t query_pairs[kTileQueries][kMaxHeadDim / 2];  // bfloat16 keys only
  uint32_t weight_pairs[kTileQueries][kBlockTokens / 2];
};

// Where one element of a key or value lies within its (block, kv head).
template <typename KV>
inline int key_index(int feature, int token) {
  if (sizeof(KV) == sizeof(float)) return feature * kBlockTokens + token;
  return (feature / 2 * kBlockTokens + token) * 2 + feature % 2;
}

template <typename KV>
inline int value_index(int token, int feature, int head_dim) {
  if (sizeof(KV) == sizeof(float)) return token * head_dim + feature;
  return (token / 2 * head_dim + feature) * 2 + token % 2;
}

// One step along the summed dimension, for sixteen sums: a float each, or a pair of bfloat16.
inline f32x16 multiply_add(f32x16 total, const float* from, float factor) {
  return total + load(from) * factor;
}

inline f32x16 multiply_add(f32x16 total, const uint16_t* from, uint32_t factors) {
  return add_pair_products(total, load_words(from), factors);
}

inline const float* score_factors(const QueryTile& tile, int q, const float*) {
  return tile.queries[q];
}
inline const uint32_t* score_factors(const QueryTile& tile, int q, const uint16_t*) {
  return tile.query_pairs[q];
}
inline const float* gather_factors(const QueryTile& tile, int q, const float*) {
  return tile.weights[q];
}
inline const uint32_t* gather_factors(const QueryTile& tile, int q, const uint16_t*) {
  return tile.weight_pairs[q];
}

// Elements of KV that one summed step takes per lane.
template <typename KV>
constexpr int kPerStep = sizeof(float) / sizeof(KV);

template <typename KV, int Queries>
inline void score_stripe(QueryTile& tile, int first, const KV* keys, int head_dim) {
  f32x16 left[Queries], right[Queries];
  for (int q = 0; q < Queries; q++) left[q] = right[q] = f32x16{};
  for (int step = 0; step < head_dim / kPerStep<KV>; step++) {
    const KV* key = keys + step * kBlockTokens * kPerStep<KV>;
    for (int q = 0; q < Queries; q++) {
      const auto factor = score_factors(tile, first + q, keys)[step];
      left[q] = multiply_add(left[q], key, factor);
      right[q] = multiply_add(right[q], key + kLanes * kPerStep<KV>, factor);
    }
  }
  for (int q = 0; q < Queries; q++) {
    store(tile.weights[first + q], left[q]);
    store(tile.weights[first + q] + kLanes, right[q]);
  }
}

template <typename KV, int Queries>
inline void gather_stripe(QueryTile& tile, int first, const KV* values, int head_dim) {
  for (int d = 0; d < head_dim; d += 2 * kLanes) {
    const bool pair = d + kLanes < head_dim;
    f32x16 left[Queries], right[Queries];
    for (int q = 0; q < Queries; q++) {
      left[q] = load(tile.outputs[first + q] + d);
      right[q] = pair ? load(tile.outputs[first + q] + d + kLanes) : f32x16{};
    }
    // A lone last vector is summed twice rather than branched on; the copy is dropped.
    const int other = pair ? kLanes : 0;
    for (int step = 0; step < kBlockTokens / kPerStep<KV>; step++) {
      const KV* value = values + (step * head_dim + d) * kPerStep<KV>;
      for (int q = 0; q < Queries; q++) {
        const auto factor = gather_factors(tile, first + q, values)[step];
        left[q] = multiply_add(left[q], value, factor);
        right[q] = multiply_add(right[q], value + other * kPerStep<KV>, factor);
      }
    }
    for (int q = 0; q < Queries; q++) {
      store(tile.outputs[first + q] + d, left[q]);
      if (pair) store(tile.outputs[first + q] + d + kLanes, right[q]);
    }
  }
}

inline i32x16 token_positions(int start) {
  return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + start;
}

// Takes out of a block's scores what the query may not see: tokens after it, and, with a window,
// tokens `window` or more before it.
inline void mask_scores(f32x16* scores, int position, int block_start, int window) {
  for (int half = 0; half < 2; half++) {
    const i32x16 tokens = token_positions(block_start + half * kLanes);
    i32x16 visible = tokens <= position;
    if (window > 0) visible &= tokens > position - window;
    scores[half] = select(visible, scores[half], splat(-__builtin_inff()));
  }
}

// A block holds a higher score than any before it: what was summed so far weighs less.
inline void raise_maximum(QueryTile& tile, int q, float maximum, int head_dim) {
  const float correction = exp(splat(tile.maxima[q] - maximum))[0];
  store(tile.totals[q], load(tile.totals[q]) * correction);
  for (int d = 0; d < head_dim; d += kLanes)
    store(tile.outputs[q] + d, load(tile.outputs[q] + d) * correction);
  tile.maxima[q] = maximum;
}

// Turns one query's scores into weights relative to its running maximum.
inline void softmax_step(QueryTile& tile, int q, int block_start, int window, int head_dim) {
  const int position = tile.positions[q];
  f32x16 scores[2] = {load(tile.weights[q]), load(tile.weights[q] + kLanes)};
  const bool is_whole = block_start + kBlockTokens - 1 <= position &&
                        (window == 0 || block_start > position - window);
  if (!is_whole) mask_scores(scores, position, block_start, window);
  const f32x16 larger = vmax(scores[0], scores[1]);
  if (any(larger > splat(tile.maxima[q]))) raise_maximum(tile, q, max(larger), head_dim);
  const float maximum = tile.maxima[q];
  const f32x16 left = exp(scores[0] - maximum), right = exp(scores[1] - maximum);
  store(tile.weights[q], left);
  store(tile.weights[q] + kLanes, right);
  store(tile.totals[q], load(tile.totals[q]) + (left + right));
}

// `count` floats, a multiple of 16, as bfloat16.
inline void pair_up(const float* from, uint32_t* pairs, int count) {
  int i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes)
    store_pairs(pairs + i / 2, load(from + i), load(from + i + kLanes));
  for (; i < count; i += 2)
    pairs[i / 2] = narrow_bf16(from[i]) | uint32_t(narrow_bf16(from[i + 1])) << 16;
}

template <typename KV>
inline void attend_block(QueryTile& tile, const KV* keys, const KV* values, int block_start,
                         int window, int head_dim) {
  int q = 0;
  for (; q + kStripe <= tile.count; q += kStripe)
    score_stripe<KV, kStripe>(tile, q, keys, head_dim);
  for (; q + 3 <= tile.count; q += 3) score_stripe<KV, 3>(tile, q, keys, head_dim);
  for (; q < tile.count; q++) score_stripe<KV, 1>(tile, q, keys, head_dim);

  for (q = 0; q < tile.count; q++) {
    softmax_step(tile, q, block_start, window, head_dim);
    if (sizeof(KV) != sizeof(float)) pair_up(tile.weights[q], tile.weight_pairs[q], kBlockTokens);
  }

  q = 0;
  for (; q + kStripe <= tile.count; q += kStripe)
    gather_stripe<KV, kStripe>(tile, q, values, head_dim);
  for (; q + 3 <= tile.count; q += 3) gather_stripe<KV, 3>(tile, q, values, head_dim);
  for (; q < tile.count; q++) gather_stripe<KV, 1>(tile, q, values, head_dim);
}

}  // namespace helexa
