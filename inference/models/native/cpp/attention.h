// Attention of a batch's rows: tiles of queries meet one sequence's blocks, one KV block at a time, by the
// online softmax of Flash Attention (Dao et al. 2022, arXiv:2205.14135). What a block's bytes are, and how
// scores and weighted sums come out of them, is a KV format's own: element_kv.h for numbers as they are,
// int8_kv.h for codes.
//
// Blocks are visited in order of position and a masked token weighs exactly zero, so a query's result does
// not depend on which other queries share its tile. What is behind the tile's last token is not multiplied
// by zero but left out, because zero times NaN is NaN.
#pragma once

#include <algorithm>
#include <cmath>

#include "model.h"
#include "rows.h"
#include "simd.h"

namespace helexa {

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
    weights[half] = exp2<Coarse>(power);
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

// Consecutive rows of one sequence, whose queries meet its keys together.
struct RowTile {
  int first_row, count;
};

// A head's features, by one angle for each pair: halves of them together, or neighbours.
inline void rotate_halves(float* head, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; i++) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosine[i] - b * sine[i];
    head[i + half] = b * cosine[i] + a * sine[i];
  }
}

inline void rotate_neighbours(float* head, const float* cosine, const float* sine, int count) {
  for (int i = 0; i < count; i++) {
    const float a = head[2 * i], b = head[2 * i + 1];
    head[2 * i] = a * cosine[i] - b * sine[i];
    head[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

// One layer's keys and values, and the rows that write and read them.
template <typename KV>
class RowAttention : LayerRows {
 public:
  // Rows have gates, queries, keys and values.
  explicit RowAttention(const LayerRows& rows) : LayerRows(rows) {
    const int64_t offset = layer_.cache_index * batch_.num_blocks * m_.num_kv_heads * region_bytes();
    keys_ = batch_.keys + offset;
    values_ = batch_.values + offset;
  }

  // Rotates the row's queries and keys, and keeps its keys and values.
  void rotate_and_cache(int row) const {
    const int position = int(batch_.positions[row]);
    float* query = queries(row);
    const float *query_norm = layer_.query_norm, *key_norm = layer_.key_norm;
    if (m_.is_qk_norm_wide) {
      float* keys = query + m_.query_width();
      rms_norm_row(query, query_norm, m_.query_width(), m_.norm_eps, query);
      rms_norm_row(keys, key_norm, m_.kv_width(), m_.norm_eps, keys);
      query_norm = key_norm = nullptr;
    }
    const Images* images = batch_.images;
    const bool by_row = images && images->cosines;
    const int64_t at = int64_t(by_row ? row : position) * (layer_.rotary_dim / 2);
    const float* cosine = (by_row ? images->cosines : layer_.cosines) + at;
    const float* sine = (by_row ? images->sines : layer_.sines) + at;
    for (int h = 0; h < m_.num_heads; h++) rotate(query_norm, cosine, sine, query + h * m_.head_dim);
    for (int h = 0; h < m_.num_kv_heads; h++) {
      float* key = query + m_.query_width() + h * m_.head_dim;
      const float* value = key + m_.kv_width();
      rotate(key_norm, cosine, sine, key);
      const int64_t to = region(row, position, h);
      KV::write(keys_ + to, values_ + to, position % kBlockTokens, key, value, m_.head_dim);
    }
  }

  // `outputs` (rows.count, query_width): the heads of `kv_head` of each of the rows.
  void attend(RowTile rows, int kv_head, QueryTile& tile, float* outputs) const {
    gather_queries(rows, kv_head, tile);
    const int first = int(batch_.positions[rows.first_row]);
    int last = 0;
    for (int i = 0; i < rows.count; i++)
      last = std::max(last, batch_.last_seen_by(rows.first_row + i));
    const int window = layer_.window, oldest = std::max(0, first_seen(first, window, layer_.is_chunked));
    const float cap = m_.score_cap * kLog2E;
    for (int start = oldest / kBlockTokens * kBlockTokens; start <= last; start += kBlockTokens) {
      const int64_t at = region(rows.first_row, start, kv_head);
      // Tokens behind them in the block are not the sequence's: others have left them there.
      const int num_tokens = std::min(kBlockTokens, last - start + 1);
      const BlockView block{start, num_tokens, window, bool(layer_.is_chunked), cap};
      KV::attend_block(tile, keys_ + at, values_ + at, block, m_.head_dim);
    }
    scatter_outputs(tile, kv_head, outputs);
    if (m_.has_output_gate) gate_outputs(rows, kv_head, outputs);
  }

 private:
  float* queries(int index) const { return row(index) + m_.gate_width(); }

  int64_t region_bytes() const { return KV::region_bytes(m_.head_dim); }

  // Where the keys, or the values, lie of one block of the row's sequence.
  int64_t region(int row, int position, int kv_head) const {
    return (batch_.block_of(row, position) * m_.num_kv_heads + kv_head) * region_bytes();
  }

  void rotate(const float* norm, const float* cosine, const float* sine, float* head) const {
    const int half = layer_.rotary_dim / 2;
    const bool norms_first = norm && !m_.is_qk_norm_after_rotation;
    if (norms_first) rms_norm_row(head, norm, m_.head_dim, m_.norm_eps, head);
    if (m_.is_rope_interleaved) rotate_neighbours(head, cosine, sine, half);
    else rotate_halves(head, cosine, sine, half);
    if (norm && !norms_first) rms_norm_row(head, norm, m_.head_dim, m_.norm_eps, head);
  }

  void gather_queries(RowTile rows, int kv_head, QueryTile& tile) const {
    const int group = m_.heads_per_kv_head();
    const float scale = kLog2E * m_.query_scale / std::sqrt(float(m_.head_dim));
    tile.count = rows.count * group;
    for (int q = 0; q < tile.count; q++) {
      const int row = rows.first_row + q / group;
      const float* query = queries(row) + (kv_head * group + q % group) * m_.head_dim;
      const float row_scale =
          layer_.grows_queries ? scale * m_.query_growth[batch_.positions[row]] : scale;
      for (int d = 0; d < m_.head_dim; d++) {
        tile.queries[q][d] = query[d] * row_scale;
        tile.outputs[q][d] = 0;
      }
      KV::prepare_query(tile, q, m_.head_dim);
      tile.positions[q] = int(batch_.positions[row]);
      tile.last_seen[q] = batch_.last_seen_by(row);
      tile.maxima[q] = kNoScore;
      store(tile.totals[q], f32x16{});
    }
  }

  void scatter_outputs(const QueryTile& tile, int kv_head, float* outputs) const {
    const int group = m_.heads_per_kv_head();
    for (int q = 0; q < tile.count; q++) {
      float* out = outputs + int64_t(q / group) * m_.query_width() +
                   (kv_head * group + q % group) * m_.head_dim;
      const float factor = 1.0f / sum(load(tile.totals[q]));
      for (int d = 0; d < m_.head_dim; d++) out[d] = tile.outputs[q][d] * factor;
    }
  }

  // Multiplies outputs by the sigmoid of the gates of the same heads.
  void gate_outputs(RowTile rows, int kv_head, float* outputs) const {
    const int width = m_.heads_per_kv_head() * m_.head_dim;
    for (int row = 0; row < rows.count; row++) {
      const float* gate = LayerRows::row(rows.first_row + row) + kv_head * width;
      float* out = outputs + int64_t(row) * m_.query_width() + kv_head * width;
      for (int i = 0; i < width; i += kLanes)
        store(out + i, load(out + i) / (1.0f + exp(-load(gate + i))));
    }
  }

  uint8_t *keys_, *values_;
};

}  // namespace helexa
