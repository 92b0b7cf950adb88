// Attention of a batch's rows: where their queries, keys and values lie, and which meet which.
#pragma once

#include <cmath>

#include "buffers.h"
#include "element_attention.h"
#include "int8_attention.h"
#include "model.h"
#include "rows.h"

namespace helexa {

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
class RowAttention {
 public:
  // `rows` of the whole batch, `stride` apart: gates, queries, keys and values of each.
  RowAttention(const Model& model, const Batch& batch, const Layer& layer, float* rows, int stride)
      : m_(model), batch_(batch), layer_(layer), rows_(rows), stride_(stride) {
    const int64_t offset =
        layer.cache_index * batch.num_blocks * m_.num_kv_heads * region_bytes();
    keys_ = batch.keys + offset;
    values_ = batch.values + offset;
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
      // What lies behind them in the block is not the sequence's: others have left it there.
      const int num_tokens = std::min(kBlockTokens, last - start + 1);
      const BlockView block{start, num_tokens, window, bool(layer_.is_chunked), cap};
      KV::attend_block(tile, keys_ + at, values_ + at, block, m_.head_dim);
    }
    scatter_outputs(tile, kv_head, outputs);
    if (m_.has_output_gate) gate_outputs(rows, kv_head, outputs);
  }

 private:
  float* gates(int row) const { return rows_ + int64_t(row) * stride_; }
  float* queries(int row) const { return gates(row) + m_.gate_width(); }

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

  // Times the sigmoid of the gates of the same heads.
  void gate_outputs(RowTile rows, int kv_head, float* outputs) const {
    const int width = m_.heads_per_kv_head() * m_.head_dim;
    for (int row = 0; row < rows.count; row++) {
      const float* gate = gates(rows.first_row + row) + kv_head * width;
      float* out = outputs + int64_t(row) * m_.query_width() + kv_head * width;
      for (int i = 0; i < width; i += kLanes)
        store(out + i, load(out + i) / (1.0f + exp(-load(gate + i))));
    }
  }

  const Model& m_;
  const Batch& batch_;
  const Layer& layer_;
  float* const rows_;
  const int stride_;
  uint8_t *keys_, *values_;
};

}  // namespace helexa
