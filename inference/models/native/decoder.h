// A llama-family decoder on CPU: token ids and block tables in, logits out, in one call.
//
// One call is one run of the thread team: the layers follow each other inside it, with a barrier
// wherever a step reads what another member wrote. Rows are tokens; consecutive rows of one
// sequence form tiles for attention, so prompt chunks and single decode rows take the same path.
#pragma once

#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "buffers.h"
#include "draw.h"
#include "element_attention.h"
#include "int8_attention.h"
#include "linear.h"
#include "model.h"
#include "simd.h"
#include "thread_team.h"

namespace helexa {

struct RowTile {
  int first_row, count;
};

class Decoder {
 public:
  Decoder(const Model& model, int num_threads) : m_(model), team_(num_threads) {
    layers_.assign(model.layers, model.layers + model.num_layers);
    for (int i = 0; i < num_threads; i++) tiles_scratch_.push_back(std::make_unique<QueryTile>());
    drawers_.resize(num_threads);
  }

  void forward(const Batch& batch) {
    buffers_.reserve(m_, batch.num_rows);
    cut_into_tiles(batch);
    team_.run([&](int member) {
      if (m_.kv_format == kKVInt8) forward_member<Int8KV>(batch, member);
      else if (m_.kv_format == kKVBfloat16) forward_member<ElementKV<uint16_t>>(batch, member);
      else forward_member<ElementKV<float>>(batch, member);
    });
  }

  // `scores` (rows, vocab_size); one token id per draw.
  void draw(const float* scores, const Draw* draws, int count, int64_t* token_ids) {
    const int vocab_size = m_.head.out_features;
    for_rows(count, [&](int i, int member) {
      const float* row = scores + draws[i].row * vocab_size;
      token_ids[i] = drawers_[member].draw(row, vocab_size, draws[i]);
    });
  }

  // For each of `num_rows` rows of `scores`.
  void find_likeliest(const float* scores, int num_rows, int64_t* token_ids, bool* are_finite) {
    const int vocab_size = m_.head.out_features;
    for_rows(num_rows, [&](int row, int) {
      const Likeliest found = likeliest(scores + int64_t(row) * vocab_size, vocab_size);
      token_ids[row] = found.token_id;
      are_finite[row] = found.is_finite;
    });
  }

 private:
  // What takes some microseconds for a row: a few are done before anybody else is awake.
  template <typename Use>
  void for_rows(int count, Use use) {
    constexpr int kFew = 4;
    const int num_members = count <= kFew ? 1 : team_.size();
    const auto do_share = [&](int member) {
      const Share mine(count, member, num_members);
      for (int i = mine.begin; i < mine.end; i++) use(i, member);
    };
    if (num_members == 1) do_share(0);
    else team_.run(do_share);
  }

  int query_width() const { return m_.num_heads * m_.head_dim; }
  int kv_width() const { return m_.num_kv_heads * m_.head_dim; }
  int qkv_width() const { return query_width() + 2 * kv_width(); }
  Share share(int count, int member) const { return Share(count, member, team_.size()); }

  void cut_into_tiles(const Batch& batch) {
    const int most = std::max(1, kTileQueries / (m_.num_heads / m_.num_kv_heads));
    tiles_.clear();
    for (int row = 0; row < batch.num_rows; row++) {
      const bool joins = !tiles_.empty() && tiles_.back().count < most &&
                         batch.sequences[row] == batch.sequences[row - 1] &&
                         batch.positions[row] > batch.positions[row - 1];
      if (joins) tiles_.back().count++;
      else tiles_.push_back({row, 1});
    }
  }

  template <typename KV>
  void forward_member(const Batch& batch, int member) {
    embed(batch, member);
    team_.barrier();
    const Batch* rows = &batch;
    for (int layer = 0; layer < m_.num_layers; layer++) {
      cache_layer<KV>(batch, layer, member);
      if (layer + 1 == m_.num_layers) {
        if (batch.num_logit_rows == 0) return;
        if (member == 0) keep_logit_rows(batch);
        team_.barrier();
        rows = &wanted_;
      }
      attention_layer<KV>(*rows, layer, member);
      mlp_layer(*rows, layers_[layer], member);
    }
    head(*rows, member);
  }

  // Once its keys and values are written the last layer has nothing to do for rows without logits:
  // the others move to the front, as the batch `wanted_`.
  void keep_logit_rows(const Batch& batch) {
    wanted_ = batch;
    if (batch.num_logit_rows == batch.num_rows) return;
    const int n = batch.num_logit_rows;
    wanted_.num_rows = n;
    pick_rows(batch.positions, batch.logit_rows, n, 1, wanted_positions_);
    pick_rows(batch.sequences, batch.logit_rows, n, 1, wanted_sequences_);
    wanted_.positions = wanted_positions_.data();
    wanted_.sequences = wanted_sequences_.data();
    std::vector<float> rows;
    pick_rows(buffers_.hidden.data(), batch.logit_rows, n, m_.hidden_size, rows);
    std::copy(rows.begin(), rows.end(), buffers_.hidden.begin());
    pick_rows(buffers_.qkv.data(), batch.logit_rows, n, qkv_width(), rows);
    std::copy(rows.begin(), rows.end(), buffers_.qkv.begin());
    wanted_rows_.resize(n);
    std::iota(wanted_rows_.begin(), wanted_rows_.end(), 0);
    wanted_.logit_rows = wanted_rows_.data();
    cut_into_tiles(wanted_);
  }

  template <typename T>
  static void pick_rows(const T* from, const int64_t* rows, int count, int width,
                        std::vector<T>& to) {
    to.resize(int64_t(count) * width);
    for (int i = 0; i < count; i++)
      std::copy_n(from + rows[i] * width, width, to.begin() + int64_t(i) * width);
  }

  // Where the keys, or the values, of a layer begin.
  template <typename KV>
  uint8_t* layer_cache(const Batch& batch, uint8_t* cache, int index) const {
    return cache + index * batch.num_blocks * m_.num_kv_heads * KV::region_bytes(m_.head_dim);
  }

  template <typename KV>
  void cache_layer(const Batch& batch, int index, int member) {
    const Layer& layer = layers_[index];
    uint8_t* keys = layer_cache<KV>(batch, batch.keys, index);
    uint8_t* values = layer_cache<KV>(batch, batch.values, index);
    normalize(batch.num_rows, layer.attention_norm, layer.qkv, member);
    team_.barrier();
    project(layer.qkv, batch.num_rows, buffers_.qkv.data(), qkv_width(), false, member);
    if (member == 0) next_task_ = 0;
    team_.barrier();
    const Share rows = share(batch.num_rows, member);
    for (int row = rows.begin; row < rows.end; row++)
      rotate_and_cache<KV>(batch, layer, row, keys, values);
    team_.barrier();
  }

  template <typename KV>
  void attention_layer(const Batch& batch, int index, int member) {
    const Layer& layer = layers_[index];
    const uint8_t* keys = layer_cache<KV>(batch, batch.keys, index);
    const uint8_t* values = layer_cache<KV>(batch, batch.values, index);
    const int num_tasks = int(tiles_.size()) * m_.num_kv_heads;
    for (int task; (task = next_task_.fetch_add(1)) < num_tasks;)
      attend<KV>(batch, tiles_[task / m_.num_kv_heads], task % m_.num_kv_heads, keys, values, member);
    team_.barrier();
    quantize(batch.num_rows, query_width(), layer.output, member);
    project(layer.output, batch.num_rows, buffers_.hidden.data(), m_.hidden_size, true, member);
    team_.barrier();
  }

  void mlp_layer(const Batch& batch, const Layer& layer, int member) {
    normalize(batch.num_rows, layer.mlp_norm, layer.gate_up, member);
    team_.barrier();
    project(layer.gate_up, batch.num_rows, buffers_.gate_up.data(), buffers_.gate_up_stride, false,
            member);
    team_.barrier();
    gate(batch.num_rows, layer.down, member);
    project(layer.down, batch.num_rows, buffers_.hidden.data(), m_.hidden_size, true, member);
    team_.barrier();
  }

  void head(const Batch& batch, int member) {
    const Share rows = share(batch.num_logit_rows, member);
    const Activations x = buffers_.activations(m_.hidden_size);
    for (int i = rows.begin; i < rows.end; i++) {
      const float* row = buffers_.hidden.data() + batch.logit_rows[i] * m_.hidden_size;
      normalize_row(row, m_.final_norm, m_.hidden_size, x.values + int64_t(i) * m_.hidden_size);
      if (m_.head.reads_codes()) quantize_row(x, i, m_.head.reads_half_sums());
    }
    team_.barrier();
    const Share panels = share(m_.head.num_panels(), member);
    linear(m_.head, x, batch.num_logit_rows, panels.begin, panels.end, batch.logits,
           m_.head.out_features, false);
  }

  void embed(const Batch& batch, int member) {
    const Share rows = share(batch.num_rows, member);
    for (int row = rows.begin; row < rows.end; row++)
      embed_row(int(batch.token_ids[row]), buffers_.hidden.data() + int64_t(row) * m_.hidden_size);
  }

  // Reads one output feature of a packed table: the embedding of one token.
  void embed_row(int token, float* out) const {
    const Linear& table = m_.embedding;
    const int64_t panel = token / kLanes;
    const int lane = token % kLanes;
    if (table.format == kF32) {
      const float* column =
          reinterpret_cast<const float*>(table.panels) + panel * m_.hidden_size * kLanes;
      for (int k = 0; k < m_.hidden_size; k++) out[k] = column[k * kLanes + lane];
      return;
    }
    with_format(table.format, [&]<typename F>(F) {
      const uint8_t* block = table.panels + panel * panel_bytes<F>(table.num_groups());
      read_row<F>(block, table.num_groups(), lane, out);
    });
  }

  void normalize_row(const float* in, const float* weight, int width, float* out) const {
    const float total = sum_of_squares(in, width);
    const float factor = 1.0f / std::sqrt(total / float(width) + m_.rms_norm_eps);
    for (int i = 0; i < width; i++) out[i] = in[i] * factor * weight[i];
  }

  void normalize(int num_rows, const float* weight, const Projection& next, int member) {
    const Share rows = share(num_rows, member);
    const Activations x = buffers_.activations(m_.hidden_size);
    for (int row = rows.begin; row < rows.end; row++) {
      const int64_t at = int64_t(row) * m_.hidden_size;
      normalize_row(buffers_.hidden.data() + at, weight, m_.hidden_size, x.values + at);
      if (next.reads_codes()) quantize_row(x, row, next.reads_half_sums());
    }
  }

  // Quantises buffers_.values for `next`, split by groups so that one row has work for everybody.
  void quantize(int num_rows, int width, const Projection& next, int member) {
    if (!next.reads_codes()) return;
    const Activations x = buffers_.activations(width);
    const int num_groups = x.num_groups();
    const Share groups = share(num_rows * num_groups, member);
    for (int row = groups.begin / num_groups; row * num_groups < groups.end; row++) {
      const int first = std::max(0, groups.begin - row * num_groups);
      const int last = std::min(num_groups, groups.end - row * num_groups);
      const float mean = mean_square(x.values + int64_t(row) * width, width);
      quantize_groups(x, row, first, last, mean, next.reads_half_sums());
    }
    team_.barrier();
  }

  void project(const Projection& w, int num_rows, float* out, int64_t stride, bool add,
               int member) {
    const Share panels = share(w.num_panels(), member);
    helexa::project(w, buffers_.activations(w.in_features()), num_rows, panels.begin, panels.end,
                    out, stride, add);
  }

  void rotate(const float* norm, int position, float* head) const {
    const int half = m_.head_dim / 2;
    const float* cosine = m_.cosines + int64_t(position) * half;
    const float* sine = m_.sines + int64_t(position) * half;
    if (norm) normalize_row(head, norm, m_.head_dim, head);
    for (int i = 0; i < half; i++) {
      const float a = head[i], b = head[i + half];
      head[i] = a * cosine[i] - b * sine[i];
      head[i + half] = b * cosine[i] + a * sine[i];
    }
  }

  template <typename KV>
  void rotate_and_cache(const Batch& batch, const Layer& layer, int row, uint8_t* keys,
                        uint8_t* values) {
    const int position = int(batch.positions[row]);
    float* query = buffers_.qkv.data() + int64_t(row) * qkv_width();
    for (int h = 0; h < m_.num_heads; h++)
      rotate(layer.query_norm, position, query + h * m_.head_dim);
    const int64_t block = block_of(batch, row, position);
    const int offset = position % kBlockTokens;
    for (int h = 0; h < m_.num_kv_heads; h++) {
      float* key = query + query_width() + h * m_.head_dim;
      const float* value = key + kv_width();
      rotate(layer.key_norm, position, key);
      const int64_t at = (block * m_.num_kv_heads + h) * KV::region_bytes(m_.head_dim);
      KV::write(keys + at, values + at, offset, key, value, m_.head_dim);
    }
  }

  int64_t block_of(const Batch& batch, int row, int position) const {
    const int64_t table = batch.sequences[row] * batch.table_stride;
    return batch.block_tables[table + position / kBlockTokens];
  }

  template <typename KV>
  void attend(const Batch& batch, RowTile rows, int kv_head, const uint8_t* keys,
              const uint8_t* values, int member) {
    QueryTile& tile = *tiles_scratch_[member];
    gather_queries<KV>(batch, rows, kv_head, tile);
    const int first = int(batch.positions[rows.first_row]);
    const int last = int(batch.positions[rows.first_row + rows.count - 1]);
    const int oldest = m_.window > 0 ? std::max(0, first - m_.window + 1) : 0;
    for (int start = oldest / kBlockTokens * kBlockTokens; start <= last; start += kBlockTokens) {
      const int64_t block = block_of(batch, rows.first_row, start);
      const int64_t at = (block * m_.num_kv_heads + kv_head) * KV::region_bytes(m_.head_dim);
      KV::attend_block(tile, keys + at, values + at, start, m_.window, m_.head_dim);
    }
    scatter_outputs(rows, kv_head, tile);
  }

  template <typename KV>
  void gather_queries(const Batch& batch, RowTile rows, int kv_head, QueryTile& tile) const {
    const int group = m_.num_heads / m_.num_kv_heads;
    const float scale = kLog2E / std::sqrt(float(m_.head_dim));
    tile.count = rows.count * group;
    for (int q = 0; q < tile.count; q++) {
      const int row = rows.first_row + q / group;
      const float* query = buffers_.qkv.data() + int64_t(row) * qkv_width() +
                           (kv_head * group + q % group) * m_.head_dim;
      for (int d = 0; d < m_.head_dim; d++) {
        tile.queries[q][d] = query[d] * scale;
        tile.outputs[q][d] = 0;
      }
      KV::prepare_query(tile, q, m_.head_dim);
      tile.positions[q] = int(batch.positions[row]);
      tile.maxima[q] = kNoScore;
      store(tile.totals[q], f32x16{});
    }
  }

  void scatter_outputs(RowTile rows, int kv_head, const QueryTile& tile) {
    const int group = m_.num_heads / m_.num_kv_heads;
    for (int q = 0; q < tile.count; q++) {
      float* out = buffers_.values.data() + int64_t(rows.first_row + q / group) * query_width() +
                   (kv_head * group + q % group) * m_.head_dim;
      const float factor = 1.0f / sum(load(tile.totals[q]));
      for (int d = 0; d < m_.head_dim; d++) out[d] = tile.outputs[q][d] * factor;
    }
  }

  // values = silu(gate) * up, ready for `next`. Where there are rows for everybody each is quantised
  // while it is in the cache; else members share a row.
  void gate(int num_rows, const Projection& next, int member) {
    const Activations x = buffers_.activations(m_.intermediate_size);
    if (num_rows < team_.size()) {
      const Share columns = share(m_.intermediate_size / kLanes, member);
      for (int row = 0; row < num_rows; row++) gate_row(x, row, columns.begin, columns.end);
      team_.barrier();
      quantize(num_rows, m_.intermediate_size, next, member);
      return;
    }
    const Share rows = share(num_rows, member);
    for (int row = rows.begin; row < rows.end; row++) {
      gate_row(x, row, 0, m_.intermediate_size / kLanes);
      if (next.reads_codes()) quantize_row(x, row, next.reads_half_sums());
    }
    team_.barrier();
  }

  // Vectors [first, last) of one row. intermediate_size is a multiple of kLanes.
  void gate_row(const Activations& x, int row, int first, int last) const {
    const float* gates = buffers_.gate_up.data() + int64_t(row) * buffers_.gate_up_stride;
    float* out = x.values + int64_t(row) * m_.intermediate_size;
    for (int i = first * kLanes; i < last * kLanes; i += kLanes) {
      const f32x16 g = load(gates + i), up = load(gates + m_.intermediate_size + i);
      store(out + i, g / (1.0f + exp(-g)) * up);
    }
  }

  const Model m_;
  ThreadTeam team_;
  std::vector<Layer> layers_;
  Buffers buffers_;
  std::vector<RowTile> tiles_;
  Batch wanted_{};
  std::vector<int64_t> wanted_positions_, wanted_sequences_, wanted_rows_;
  std::vector<std::unique_ptr<QueryTile>> tiles_scratch_;
  std::vector<Drawer> drawers_;
  std::atomic<int> next_task_{0};
};

}  // namespace helexa
