// A llama-family decoder on CPU: token ids and block tables in, logits out, in one call.
//
// One call is one run of the thread team: the layers follow each other inside it, with a barrier
// wherever a step reads what another member wrote. Rows are tokens; consecutive rows of one
// sequence form tiles for attention, so prompt chunks and single decode rows take the same path.
// Called through ctypes (decoder.py); the structs below are mirrored there field by field.

#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "element_attention.h"
#include "int8_attention.h"
#include "linear.h"
#include "simd.h"
#include "thread_team.h"

namespace helexa {

extern "C" {

enum KVFormat : int32_t { kKVFloat = 0, kKVBfloat16 = 1, kKVInt8 = 2 };

struct Layer {
  Projection qkv, output, gate_up, down;
  const float* attention_norm;
  const float* mlp_norm;
  const float* query_norm;  // null: none
  const float* key_norm;
};

struct Model {
  int32_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim;
  int32_t window;   // 0: none
  int32_t kv_format;  // a KVFormat
  float rms_norm_eps;
  const Layer* layers;
  const float* final_norm;
  Linear embedding;  // out_features = vocab_size; a table, read by row
  Linear head;
  const float* cosines;  // (max_positions, head_dim / 2)
  const float* sines;
};

struct Batch {
  int32_t num_rows;
  int32_t num_logit_rows;
  int32_t table_stride;
  const int64_t* token_ids;    // (num_rows,)
  const int64_t* positions;    // (num_rows,)
  const int64_t* sequences;    // (num_rows,) row of block_tables
  const int64_t* block_tables; // (num_sequences, table_stride)
  const int64_t* logit_rows;   // (num_logit_rows,) rows whose next token is wanted
  uint8_t* keys;               // (num_layers, num_blocks, num_kv_heads, the format's region_bytes)
  uint8_t* values;             // the same
  int64_t num_blocks;
  float* logits;               // (num_logit_rows, vocab_size)
};

}  // extern "C"

struct Buffers {
  std::vector<float> hidden, qkv, gate_up;
  std::vector<float> values, scales, sums, half_sums;
  std::vector<int8_t> high, low;
  std::vector<uint8_t> fine;
  int row_stride = 0;

  // Room for `rows` rows; grows and never shrinks.
  void reserve(const Model& m, int rows) {
    // An odd number of eights: groups a power of two apart would share their cache lines.
    row_stride = (rows + 7) / 8 * 8 | 8;
    const size_t n = rows;
    const size_t qkv_width = size_t(m.num_heads + 2 * m.num_kv_heads) * m.head_dim;
    const size_t attended_width = size_t(m.num_heads) * m.head_dim;
    const size_t widest =
        std::max({size_t(m.hidden_size), size_t(m.intermediate_size), attended_width});
    grow(hidden, n * m.hidden_size);
    grow(qkv, n * qkv_width);
    grow(gate_up, n * 2 * m.intermediate_size);
    grow(values, n * widest);
    grow(high, n * widest);
    grow(low, n * widest);
    grow(scales, size_t(row_stride) * (widest / kGroup + 1));
    grow(sums, size_t(row_stride) * (widest / kGroup + 1));
    grow(half_sums, size_t(row_stride) * (widest / kGroup + 1) * 2);
    grow(fine, size_t(row_stride) * (widest / kGroup + 1));
  }

  Activations activations(int width) {
    return {values.data(), high.data(), low.data(), scales.data(), sums.data(), half_sums.data(),
            fine.data(), width, row_stride};
  }

 private:
  template <typename T>
  static void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  }
};

struct RowTile {
  int first_row, count;
};

class Decoder {
 public:
  Decoder(const Model& model, int num_threads) : m_(model), team_(num_threads) {
    layers_.assign(model.layers, model.layers + model.num_layers);
    for (int i = 0; i < num_threads; i++) tiles_scratch_.push_back(std::make_unique<QueryTile>());
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

 private:
  int query_width() const { return m_.num_heads * m_.head_dim; }
  int kv_width() const { return m_.num_kv_heads * m_.head_dim; }
  int qkv_width() const { return query_width() + 2 * kv_width(); }
  Share share(int count, int member) const { return Share(count, member, team_.size()); }

  void cut_into_tiles(const Batch& batch) {
    const int most = std::max(1, kTileQueries / (m_.num_heads / m_.num_kv_heads));
    tiles_.clear();
    for (int row = 0; row < batch.num_rows; row++) {
      const bool joins = !tiles_.empty() && tiles_.back().count < most &&
                         batch.sequences[row] == batch.sequences[row - 1];
      if (joins) tiles_.back().count++;
      else tiles_.push_back({row, 1});
    }
  }

  template <typename KV>
  void forward_member(const Batch& batch, int member) {
    embed(batch, member);
    team_.barrier();
    for (int layer = 0; layer < m_.num_layers; layer++) {
      attention_layer<KV>(batch, layer, member);
      mlp_layer(batch, layers_[layer], member);
    }
    head(batch, member);
  }

  template <typename KV>
  void attention_layer(const Batch& batch, int index, int member) {
    const Layer& layer = layers_[index];
    const int64_t cache_bytes =
        batch.num_blocks * m_.num_kv_heads * KV::region_bytes(m_.head_dim);
    uint8_t* keys = batch.keys + index * cache_bytes;
    uint8_t* values = batch.values + index * cache_bytes;

    normalize(batch.num_rows, layer.attention_norm, layer.qkv, member);
    team_.barrier();
    project(layer.qkv, batch.num_rows, buffers_.qkv.data(), qkv_width(), false, member);
    if (member == 0) next_task_ = 0;
    team_.barrier();
    const Share rows = share(batch.num_rows, member);
    for (int row = rows.begin; row < rows.end; row++)
      rotate_and_cache<KV>(batch, layer, row, keys, values);
    team_.barrier();
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
    project(layer.gate_up, batch.num_rows, buffers_.gate_up.data(), 2 * m_.intermediate_size, false,
            member);
    team_.barrier();
    gate(batch.num_rows, member);
    team_.barrier();
    quantize(batch.num_rows, m_.intermediate_size, layer.down, member);
    project(layer.down, batch.num_rows, buffers_.hidden.data(), m_.hidden_size, true, member);
    team_.barrier();
  }

  void head(const Batch& batch, int member) {
    if (batch.num_logit_rows == 0) return;
    const Share rows = share(batch.num_logit_rows, member);
    const Activations x = buffers_.activations(m_.hidden_size);
    for (int i = rows.begin; i < rows.end; i++) {
      const float* row = buffers_.hidden.data() + batch.logit_rows[i] * m_.hidden_size;
      normalize_row(row, m_.final_norm, m_.hidden_size, x.values + int64_t(i) * m_.hidden_size);
      if (m_.head.format != kF32) quantize_row(x, i);
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
    f32x16 squares{};
    int i = 0;
    for (; i + kLanes <= width; i += kLanes) squares += load(in + i) * load(in + i);
    float total = sum(squares);
    for (; i < width; i++) total += in[i] * in[i];
    const float factor = 1.0f / std::sqrt(total / float(width) + m_.rms_norm_eps);
    for (i = 0; i < width; i++) out[i] = in[i] * factor * weight[i];
  }

  void normalize(int num_rows, const float* weight, const Projection& next, int member) {
    const Share rows = share(num_rows, member);
    const Activations x = buffers_.activations(m_.hidden_size);
    for (int row = rows.begin; row < rows.end; row++) {
      const int64_t at = int64_t(row) * m_.hidden_size;
      normalize_row(buffers_.hidden.data() + at, weight, m_.hidden_size, x.values + at);
      if (next.reads_codes()) quantize_row(x, row);
    }
  }

  // Quantises buffers_.values for `next`, split by groups so that one row has work for everybody.
  void quantize(int num_rows, int width, const Projection& next, int member) {
    if (!next.reads_codes()) return;
    const int num_groups = width / kGroup;
    const Activations x = buffers_.activations(width);
    const Share groups = share(num_rows * num_groups, member);
    for (int row = groups.begin / num_groups; row * num_groups < groups.end; row++) {
      const int first = std::max(0, groups.begin - row * num_groups);
      const int last = std::min(num_groups, groups.end - row * num_groups);
      quantize_groups(x, row, first, last, mean_square(x.values + int64_t(row) * width, width));
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

  // values = silu(gate) * up. The layer pads nothing: intermediate_size is a multiple of kLanes.
  void gate(int num_rows, int member) {
    const int vectors = m_.intermediate_size / kLanes;
    const Share all = share(num_rows * vectors, member);
    for (int i = all.begin; i < all.end; i++) {
      const int64_t row = i / vectors, column = i % vectors * kLanes;
      const float* gates = buffers_.gate_up.data() + row * 2 * m_.intermediate_size + column;
      const f32x16 g = load(gates), up = load(gates + m_.intermediate_size);
      float* out = buffers_.values.data() + row * m_.intermediate_size + column;
      store(out, g / (1.0f + exp(-g)) * up);
    }
  }

  const Model m_;
  ThreadTeam team_;
  std::vector<Layer> layers_;
  Buffers buffers_;
  std::vector<RowTile> tiles_;
  std::vector<std::unique_ptr<QueryTile>> tiles_scratch_;
  std::atomic<int> next_task_{0};
};

}  // namespace helexa

extern "C" {

void* helexa_decoder_new(const helexa::Model* model, int32_t num_threads) {
  return new helexa::Decoder(*model, num_threads);
}

void helexa_decoder_forward(void* decoder, const helexa::Batch* batch) {
  static_cast<helexa::Decoder*>(decoder)->forward(*batch);
}

void helexa_decoder_free(void* decoder) { delete static_cast<helexa::Decoder*>(decoder); }

// Of the keys, or the values, of one (block, kv head).
int64_t helexa_kv_region_bytes(int32_t kv_format, int32_t head_dim) {
  if (kv_format == helexa::kKVInt8) return helexa::Int8KV::region_bytes(head_dim);
  if (kv_format == helexa::kKVBfloat16)
    return helexa::ElementKV<uint16_t>::region_bytes(head_dim);
  return helexa::ElementKV<float>::region_bytes(head_dim);
}

int32_t helexa_block_tokens() { return helexa::kBlockTokens; }
int32_t helexa_max_head_dim() { return helexa::kMaxHeadDim; }

}  // extern "C"
