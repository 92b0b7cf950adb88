// Attention of a tile of queries over one sequence's blocks: the online softmax of Flash Attention
// (Dao et al. 2022, arXiv:2205.14135), one KV block at a time. What a block's bytes are, and how
// scores and weighted sums come out of them, is a KV format's own: element_attention.h for numbers
// as they are, int8_attention.h for codes.
//
// Blocks are visited in order of position and a masked token weighs exactly zero, so a query's
// result does not depend on which other queries share its tile. What is behind the tile's last token
// is not multiplied by zero but left out: zero times what is not a number is not a number.
#pragma once

#include "products.h"
#include "simd.h"

namespace helexa {

constexpr int kBlockTokens = 32;
constexpr int kTileQueries = 24;
constexpr int kStripe = 6;  // queries that share one pass over a block
constexpr int kMaxHeadDim = 256;
constexpr int kKeyGroup = 32;  // features of a query or key, as codes, that share a scale
constexpr int kMaxKeyGroups = kMaxHeadDim / kKeyGroup;
constexpr float kNoScore = -1e30f;  // a running maximum before the first score
constexpr float kLog2E = 1.44269504088896341f;

// Arrays of whole cache lines first: a vector that lies across two costs twice as much.
struct alignas(64) QueryTile {
  float queries[kTileQueries][kMaxHeadDim];  // rotated and scaled by log2(e) / sqrt(head_dim)
  float outputs[kTileQueries][kMaxHeadDim];
  float totals[kTileQueries][kLanes];  // to be summed over the lanes at the end
  float scores[kTileQueries][kBlockTokens];  // then, as floats, the weights

  // Queries and weights as the format multiplies them, where it doesn't as they are: pairs of bfloat16,
  // or codes.
  uint32_t query_pairs[kTileQueries][kMaxHeadDim / 2];
  uint32_t weight_pairs[kTileQueries][kBlockTokens / 2];
  int8_t query_codes[kTileQueries][kMaxHeadDim];
  uint8_t weight_codes[kTileQueries][kBlockTokens];
  float query_scales[kTileQueries][kMaxKeyGroups];
  int32_t query_offsets[kTileQueries][kMaxKeyGroups];
  float weight_scales[kTileQueries];
  int positions[kTileQueries];
  int last_seen[kTileQueries];  // positions that they attend up to
  float maxima[kTileQueries];
  int count;
};

// The first position that a query may see; below zero where it sees all.
inline int first_seen(int position, int window, bool is_chunked) {
  if (window == 0) return 0;
  return is_chunked ? position / window * window : position - window + 1;
}

// A block of a sequence's tokens, as a tile's queries meet it.
struct BlockView {
  int start;       // position of its first token
  int num_tokens;  // of the sequence, up to the tile's last; the rest may be anything, also not a number
  int window;      // 0: none
  bool is_chunked;  // whether queries see their chunk of `window` tokens, not the last `window`
  float cap;       // of scores, which count in powers of two; 0: none

  bool is_full() const { return num_tokens == kBlockTokens; }
  int first_seen(int position) const { return helexa::first_seen(position, window, is_chunked); }
};

inline i32x16 token_positions(int start) {
  return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + start;
}

// Takes out of a block's scores what the query may not see: tokens before the first and after the last
// that it sees.
inline void mask_scores(f32x16* scores, int first, int last, int block_start) {
  for (int half = 0; half < 2; half++) {
    const i32x16 tokens = token_positions(block_start + half * kLanes);
    const i32x16 visible = (tokens <= last) & (tokens >= first);
    scores[half] = select(visible, scores[half], splat(-__builtin_inff()));
  }
}

// cap * tanh(score / cap).
[[gnu::noinline]] inline void cap_scores(f32x16* scores, float cap) {
  for (int half = 0; half < 2; half++) {
    const f32x16 power = exp(scores[half] * (2.0f / cap));
    scores[half] = (1.0f - 2.0f / (power + 1.0f)) * cap;
  }
}

// A block holds a higher score than any before it: what was summed so far weighs less.
[[gnu::noinline]] inline void raise_maximum(QueryTile& tile, int q, float maximum, int head_dim) {
  const float correction = exp2(splat(tile.maxima[q] - maximum))[0];
  store(tile.totals[q], load(tile.totals[q]) * correction);
  for (int d = 0; d < head_dim; d += kLanes)
    store(tile.outputs[q] + d, load(tile.outputs[q] + d) * correction);
  tile.maxima[q] = maximum;
}

// Turns one query's scores into weights relative to its running maximum. `Coarse`: to some 13 bits.
template <bool Coarse>
HELEXA_INLINE void softmax_step(QueryTile& tile, int q, const BlockView& block, int head_dim,
                                f32x16* weights) {
  const int first = block.first_seen(tile.positions[q]), last = tile.last_seen[q];
  const int block_start = block.start;
  f32x16 scores[2] = {load(tile.scores[q]), load(tile.scores[q] + kLanes)};
  if (block.cap > 0) cap_scores(scores, block.cap);
  const bool is_whole = block_start + kBlockTokens - 1 <= last && block_start >= first;
  if (!is_whole) mask_scores(scores, first, last, block_start);
  const f32x16 larger = vmax(scores[0], scores[1]);
  if (any(larger > splat(tile.maxima[q]))) raise_maximum(tile, q, max(larger), head_dim);
  const float maximum = tile.maxima[q];
  for (int half = 0; half < 2; half++) {
    const f32x16 power = scores[half] - maximum;
    weights[half] = Coarse ? exp2_coarse(power) : exp2(power);
  }
  store(tile.totals[q], load(tile.totals[q]) + (weights[0] + weights[1]));
}

// Calls work.operator()<Count>(first) for all of `count` queries, in stripes.
template <typename Work>
HELEXA_INLINE void in_stripes(int count, Work&& work) {
  int q = 0;
  for (; q + kStripe <= count; q += kStripe) work.template operator()<kStripe>(q);
  for (; q + 3 <= count; q += 3) work.template operator()<3>(q);
  for (; q < count; q++) work.template operator()<1>(q);
}

}  // namespace helexa
