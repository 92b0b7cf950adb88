// One crew's work on consecutive rows of a batch, step by step through the layers. A barrier stands
// wherever a step reads what another member of the crew wrote.
#pragma once

#include "buffers.h"
#include "linear.h"
#include "model.h"
#include "row_attention.h"
#include "simd.h"
#include "sparse_mlp.h"
#include "thread_team.h"

namespace helexa {

// What a member of the team has for itself. Room for a pass's tiles of rows is made before the team
// runs: a member that found no memory could not tell the others, who would wait for it for ever.
struct OwnPlace {
  QueryTile tile;
  std::vector<RowTile> row_tiles;
  Routes routes;
  AdaptedRows adapted;
};

// Where a pass works: what is kept of all rows, of its own rows, and of the member.
struct Workplace {
  Buffers& all;
  Scratch& own;
  OwnPlace& member;
};

template <typename KV>
class RowPass {
 public:
  // Rows [first, last) of `batch`.
  RowPass(const Model& model, const Batch& batch, int first, int last, const Crew& crew,
          const Workplace& at)
      : m_(model), batch_(batch), first_(first), num_rows_(last - first), crew_(crew),
        hidden_(at.all.hidden.data() + int64_t(first) * model.hidden_size), qkv_(at.all.qkv.data()),
        own_(at.own), tile_(at.member.tile), tiles_(at.member.row_tiles), routes_(at.member.routes),
        adapted_(at.member.adapted) {
    cut_into_tiles();
    if (batch_.adapters) sort_by_adapter();
  }

  // From where the pass before `layer` ended up to the layer's queries, keys and values. Whoever
  // attends needs those of earlier rows, too.
  void come_to(int layer) {
    if (layer == 0) embed();
    else finish_layer(layer - 1);
    if (layer < m_.num_layers) begin_layer(layer);
  }

  // The rest of the last layer, and the logits of all of the rows.
  void finish() {
    if (m_.num_layers > 0) finish_layer(m_.num_layers - 1);
    normalize(m_.final_norm, Projection{1, {m_.head}});
    const Share panels = crew_.share(m_.head.num_panels());
    linear(m_.head, own_.activations(m_.hidden_size), num_rows_, panels.begin, panels.end,
           {batch_.logits, m_.head.out_features}, false);
  }

 private:
  float* hidden(int row) const { return hidden_ + int64_t(row) * m_.hidden_size; }

  void embed() {
    const Share rows = crew_.share(num_rows_);
    for (int row = rows.begin; row < rows.end; row++)
      embed_row(int(batch_.token_ids[first_ + row]), hidden(row));
    crew_.barrier();
  }

  void begin_layer(int index) {
    const Layer& layer = m_.layers[index];
    normalize(layer.attention_norm, layer.qkv);
    float* qkv = qkv_ + int64_t(first_) * m_.qkv_width();
    project(index, kQkv, layer.qkv, qkv, m_.qkv_width(), false);
    const RowAttention<KV> attention(m_, batch_, index, qkv_);
    const Share rows = crew_.share(num_rows_);
    for (int row = rows.begin; row < rows.end; row++) attention.rotate_and_cache(first_ + row);
    crew_.barrier();
  }

  void finish_layer(int index) {
    const Layer& layer = m_.layers[index];
    attend(index);
    quantize(m_.query_width(), layer.output);
    project(index, kOutput, layer.output, hidden_, m_.hidden_size, true);
    if (layer.experts) return add_experts(layer);
    normalize(layer.mlp_norm, layer.gate_up);
    project(index, kGateUp, layer.gate_up, own_.gate_up.data(), own_.gate_up_stride, false);
    gate(layer.down);
    project(index, kDown, layer.down, hidden_, m_.hidden_size, true);
  }

  void add_experts(const Layer& layer) {
    normalize(layer.mlp_norm, *layer.experts);
    const Activations x = own_.activations(m_.hidden_size);
    SparseMlp(*layer.experts, x, num_rows_, crew_, own_.experts, routes_).add_to(hidden_);
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

  // `next`: the Projection, or the Experts, that read what comes out.
  template <typename Next>
  void normalize(const float* weight, const Next& next) {
    const Share rows = crew_.share(num_rows_);
    const Activations x = own_.activations(m_.hidden_size);
    for (int row = rows.begin; row < rows.end; row++) {
      float* values = x.values + int64_t(row) * m_.hidden_size;
      normalize_row(hidden(row), weight, m_.hidden_size, m_.rms_norm_eps, values);
      if (next.reads_codes()) quantize_row(x, row, next.reads_half_sums());
    }
    crew_.barrier();
  }

  // Quantises the scratch's values for `next`, split by groups so that one row has work for everybody.
  void quantize(int width, const Projection& next) {
    if (!next.reads_codes()) return;
    const Activations x = own_.activations(width);
    const int num_groups = x.num_groups();
    const Share groups = crew_.share(num_rows_ * num_groups);
    for (int row = groups.begin / num_groups; row * num_groups < groups.end; row++) {
      const int first = std::max(0, groups.begin - row * num_groups);
      const int last = std::min(num_groups, groups.end - row * num_groups);
      const float mean = mean_square(x.values + int64_t(row) * width, width);
      quantize_groups(x, row, first, last, mean, next.reads_half_sums());
    }
    crew_.barrier();
  }

  // What rows' adapters add to a projection comes from the values that it read, also where it read
  // them quantised.
  void project(int layer, AdaptedKind kind, const Projection& w, float* out, int64_t stride, bool add) {
    const Share panels = crew_.share(w.num_panels());
    helexa::project(w, own_.activations(w.in_features()), num_rows_, panels.begin, panels.end,
                    {out, stride}, add);
    if (batch_.adapters && !adapted_.groups().empty()) {
      const AdaptedPlace at{own_.values.data(), w.in_features(), out, stride, own_.inner.data(),
                            batch_.inner_width};
      adapt_down(adapted_, layer, kind, w.in_features(), crew_, at);
      crew_.barrier();
      adapt_up(adapted_, layer, kind, crew_, at);
    }
    crew_.barrier();
  }

  void sort_by_adapter() {
    adapted_.sort(num_rows_, [&](int row) { return batch_.adapters[batch_.sequences[first_ + row]]; });
  }

  void cut_into_tiles() {
    const int most = std::max(1, kTileQueries / m_.heads_per_kv_head());
    tiles_.clear();
    for (int row = first_; row < first_ + num_rows_; row++) {
      const bool joins = !tiles_.empty() && tiles_.back().count < most &&
                         batch_.sequences[row] == batch_.sequences[row - 1] &&
                         batch_.positions[row] > batch_.positions[row - 1];
      if (joins) tiles_.back().count++;
      else tiles_.push_back({row, 1});
    }
  }

  void attend(int index) {
    const RowAttention<KV> attention(m_, batch_, index, qkv_);
    const int num_tiles = int(tiles_.size()), num_tasks = num_tiles * m_.num_kv_heads;
    for (int task; (task = own_.next_task.fetch_add(1)) < num_tasks;) {
      const RowTile rows = tiles_[task % num_tiles];
      float* outputs = own_.values.data() + int64_t(rows.first_row - first_) * m_.query_width();
      attention.attend(rows, task / num_tiles, tile_, outputs);
    }
    crew_.barrier();
    if (crew_.leads()) own_.next_task = 0;
  }

  // values = silu(gate) * up, ready for `next`. Where there are rows for everybody each is quantised
  // while it is in the cache; else members share a row.
  void gate(const Projection& next) {
    const Activations x = own_.activations(m_.intermediate_size);
    if (num_rows_ < crew_.size()) {
      const Share columns = crew_.share(m_.intermediate_size / kLanes);
      for (int row = 0; row < num_rows_; row++) gate_row(x, row, columns.begin, columns.end);
      crew_.barrier();
      quantize(m_.intermediate_size, next);
      return;
    }
    const Share rows = crew_.share(num_rows_);
    for (int row = rows.begin; row < rows.end; row++) {
      gate_row(x, row, 0, m_.intermediate_size / kLanes);
      if (next.reads_codes()) quantize_row(x, row, next.reads_half_sums());
    }
    crew_.barrier();
  }

  // Vectors [first, last) of one row. intermediate_size is a multiple of kLanes.
  void gate_row(const Activations& x, int row, int first, int last) const {
    const float* gates = own_.gate_up.data() + int64_t(row) * own_.gate_up_stride;
    float* out = x.values + int64_t(row) * m_.intermediate_size;
    for (int i = first * kLanes; i < last * kLanes; i += kLanes) {
      const f32x16 g = load(gates + i), up = load(gates + m_.intermediate_size + i);
      store(out + i, g / (1.0f + exp(-g)) * up);
    }
  }

  const Model& m_;
  const Batch& batch_;
  const int first_, num_rows_;
  const Crew crew_;
  float* const hidden_;  // of the first of the rows
  float* const qkv_;     // of the batch
  Scratch& own_;
  QueryTile& tile_;
  std::vector<RowTile>& tiles_;
  Routes& routes_;
  AdaptedRows& adapted_;
};

}  // namespace helexa
