// One crew's work on consecutive rows of a batch, step by step through the layers. A barrier stands
// wherever a step reads what another member of the crew wrote.
#pragma once

#include <algorithm>

#include "buffers.h"
#include "delta_net.h"
#include "linear.h"
#include "mamba.h"
#include "model.h"
#include "norms.h"
#include "row_attention.h"
#include "short_conv.h"
#include "simd.h"
#include "sparse_mlp.h"
#include "thread_team.h"
#include "wavefront.h"

namespace helexa {

// What a member of the team has for itself. Room for a pass's tiles of rows is made before the team
// runs: a member that found no memory could not tell the others, who would wait for it for ever.
struct OwnPlace {
  QueryTile tile;
  std::vector<RowTile> row_tiles, runs;
  Routes routes;
  DeltaScratch delta;
  AdaptedRows adapted;
};

// Where a pass works: what is kept of all rows, of its own rows, and of the member.
struct Workplace {
  Buffers& all;
  Scratch& own;
  OwnPlace& member;
  Turns* turns = nullptr;  // of blocks of rows, where each has a pass of its own
  int block = 0;
};

template <typename KV>
class RowPass {
 public:
  // Rows [first, last) of `batch`.
  RowPass(const Model& model, const Batch& batch, int first, int last, const Crew& crew,
          const Workplace& at)
      : m_(model), batch_(batch), first_(first), num_rows_(last - first), crew_(crew),
        hidden_(at.all.hidden.data() + int64_t(first) * model.hidden_size),
        projected_(at.all.projected.data()), stride_(at.all.row_width), own_(at.own), place_(at.member),
        turns_(at.turns), block_(at.block) {
    cut_into_tiles();
    if (batch_.adapters) sort_by_adapter();
  }

  // From where the pass before `layer` ended up to the layer's queries, keys and values. Whoever
  // attends needs those of earlier rows, too. A layer behind the last is its end.
  void come_to(int layer) {
    if (layer == 0) {
      embed();
    } else {
      finish_layer(layer - 1);
      add_deepstack(layer - 1);
    }
    if (layer < m_.num_layers) begin_layer(layer);
  }

  // The rest of the last layer, and the logits of all of the rows.
  void finish() {
    if (m_.num_layers > 0 && !m_.ends_with_state()) finish_layer(m_.num_layers - 1);
    normalize(m_.final_norm, Projection{1, {m_.head}});
    const Share panels = crew_.share(m_.head.num_panels());
    linear(m_.head, own_.activations(m_.hidden_size), num_rows_, panels.begin, panels.end,
           {batch_.logits, m_.head.out_features}, false);
    if (m_.logit_multiplier != 1.0f || m_.logit_cap > 0) finish_logits(panels);
  }

 private:
  float* hidden(int row) const { return hidden_ + int64_t(row) * m_.hidden_size; }

  void embed() {
    const Share rows = crew_.share(num_rows_);
    for (int row = rows.begin; row < rows.end; row++) {
      const int64_t pictured = pictured_row(row);
      if (pictured < 0) {
        embed_row(int(batch_.token_ids[first_ + row]), hidden(row));
      } else {
        std::copy_n(batch_.images->embeddings + pictured * m_.hidden_size, m_.hidden_size,
                    hidden(row));
      }
    }
    crew_.barrier();
  }

  // Which of the images' rows it is; below 0: none.
  int64_t pictured_row(int row) const {
    return batch_.images ? batch_.images->pictured[first_ + row] : -1;
  }

  // What images add to their rows after one of the first layers.
  void add_deepstack(int layer) {
    const Images* p = batch_.images;
    if (!p || layer >= p->num_deepstack) return;
    const float* added = p->deepstack + int64_t(layer) * p->num_pictured * m_.hidden_size;
    const Share rows = crew_.share(num_rows_);
    for (int row = rows.begin; row < rows.end; row++) {
      const int64_t pictured = pictured_row(row);
      if (pictured < 0) continue;
      float* to = hidden(row);
      for (int i = 0; i < m_.hidden_size; i++) to[i] += added[pictured * m_.hidden_size + i];
    }
    crew_.barrier();
  }

  void begin_layer(int index) {
    const Layer& layer = m_.layers[index];
    normalize(layer.input_norm, layer.qkv);
    project(index, kQkv, layer.qkv, projected_ + int64_t(first_) * stride_, stride_, false);
    if (layer.has_state()) return;
    const RowAttention<KV> attention(m_, batch_, layer, projected_, stride_);
    const Share rows = crew_.share(num_rows_);
    for (int row = rows.begin; row < rows.end; row++) attention.rotate_and_cache(first_ + row);
    crew_.barrier();
  }

  void finish_layer(int index) {
    const Layer& layer = m_.layers[index];
    if (m_.is_parallel) return finish_parallel_layer(layer, index);
    mix(layer, index);
    add(index, kOutput, layer.output, layer.mixed_norm);
    if (layer.experts) return add_experts(layer);
    go_up(layer, index, layer.mlp_norm);
    add(index, kDown, layer.down, layer.mlp_added_norm);
  }

  // What both parts say meets in the scratch: the rows stay as they are until both have read them.
  void finish_parallel_layer(const Layer& layer, int index) {
    go_up(layer, index, layer.input_norm);
    project(index, kDown, layer.down, own_.added.data(), m_.hidden_size, false);
    mix(layer, index);
    project(index, kOutput, layer.output, own_.added.data(), m_.hidden_size, true);
    add_to_rows(Norm{});
  }

  // values = what earlier rows say to each row, ready for the layer's output.
  void mix(const Layer& layer, int index) {
    if (layer.conv) convolve_rows(layer, index);
    else if (layer.mamba) scan(layer, index);
    else if (layer.delta) update_states(layer, index);
    else attend(layer);
    quantize(layer.output.in_features(), layer.output);
  }

  // values = what is inside of the layer's MLP, ready for what goes down.
  void go_up(const Layer& layer, int index, const Norm& norm) {
    normalize(norm, layer.gate_up);
    project(index, kGateUp, layer.gate_up, own_.gate_up.data(), own_.gate_up_stride, false);
    gate(layer.down);
  }

  void add(int layer, AdaptedKind kind, const Projection& w, const Norm& after) {
    if (m_.adds_plainly(after)) return project(layer, kind, w, hidden_, m_.hidden_size, true);
    project(layer, kind, w, own_.added.data(), m_.hidden_size, false);
    add_to_rows(after);
  }

  void add_to_rows(const Norm& after) {
    const Share rows = crew_.share(num_rows_);
    for (int row = rows.begin; row < rows.end; row++) {
      float *to = hidden(row), *added = own_.added.data() + int64_t(row) * m_.hidden_size;
      norm_row(m_, after, added, added);
      for (int i = 0; i < m_.hidden_size; i++) to[i] += added[i] * m_.residual_multiplier;
    }
    crew_.barrier();
  }

  void add_experts(const Layer& layer) {
    normalize(layer.mlp_norm, *layer.experts);
    const Activations x = own_.activations(m_.hidden_size);
    SparseMlp mlp(*layer.experts, x, num_rows_, crew_, own_.experts, place_.routes);
    if (m_.adds_plainly(layer.mlp_added_norm)) return mlp.add_to(hidden_);
    const Share rows = crew_.share(num_rows_);
    std::fill_n(own_.added.data() + int64_t(rows.begin) * m_.hidden_size,
                int64_t(rows.end - rows.begin) * m_.hidden_size, 0.0f);
    crew_.barrier();
    mlp.add_to(own_.added.data());
    add_to_rows(layer.mlp_added_norm);
  }

  // Reads one output feature of a packed table: the embedding of one token.
  void embed_row(int token, float* out) const {
    read_embedding(token, out);
    if (m_.embedding_multiplier == 1.0f) return;
    for (int i = 0; i < m_.hidden_size; i++) out[i] *= m_.embedding_multiplier;
  }

  void read_embedding(int token, float* out) const {
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
      read_row<F>(block, table.codebook, table.num_groups(), lane, out);
    });
  }

  // `next`: the Projection, or the Experts, that read what comes out.
  template <typename Next>
  void normalize(const Norm& norm, const Next& next) {
    const Share rows = crew_.share(num_rows_);
    const Activations x = own_.activations(m_.hidden_size);
    for (int row = rows.begin; row < rows.end; row++) {
      norm_row(m_, norm, hidden(row), x.values + int64_t(row) * m_.hidden_size);
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
    const AdaptedRows& adapted = place_.adapted;
    if (batch_.adapters && !adapted.groups().empty()) {
      const AdaptedPlace at{own_.values.data(), w.in_features(), out, stride, own_.inner.data(),
                            batch_.inner_width};
      adapt_down(adapted, layer, kind, w.in_features(), crew_, at);
      crew_.barrier();
      adapt_up(adapted, layer, kind, crew_, at);
    }
    crew_.barrier();
  }

  void sort_by_adapter() {
    place_.adapted.sort(num_rows_,
                        [&](int row) { return batch_.adapters[batch_.sequences[first_ + row]]; });
  }

  // Rows of one sequence: as many as meet its keys together, and all.
  void cut_into_tiles() {
    const int most = std::max(1, kTileQueries / m_.heads_per_kv_head());
    std::vector<RowTile>&tiles = place_.row_tiles, &runs = place_.runs;
    tiles.clear();
    runs.clear();
    for (int row = first_; row < first_ + num_rows_; row++) {
      const bool joins = row > first_ && batch_.sequences[row] == batch_.sequences[row - 1] &&
                         batch_.positions[row] > batch_.positions[row - 1];
      if (joins && tiles.back().count < most) tiles.back().count++;
      else tiles.push_back({row, 1});
      if (joins) runs.back().count++;
      else runs.push_back({row, 1});
    }
  }

  void attend(const Layer& layer) {
    const RowAttention<KV> attention(m_, batch_, layer, projected_, stride_);
    const std::vector<RowTile>& tiles = place_.row_tiles;
    const int num_tiles = int(tiles.size());
    share_tasks(num_tiles * m_.num_kv_heads, [&](int task) {
      const RowTile rows = tiles[task % num_tiles];
      float* outputs = own_.values.data() + int64_t(rows.first_row - first_) * m_.query_width();
      attention.attend(rows, task / num_tiles, place_.tile, outputs);
    });
  }

  // A sequence's rows one after the other, each key head by itself.
  void update_states(const Layer& layer, int index) {
    const DeltaNet& d = *layer.delta;
    const DeltaRows delta(d, batch_, layer.cache_index, m_.norm_eps, projected_, stride_);
    const std::vector<RowTile>& runs = place_.runs;
    const int num_runs = int(runs.size());
    if (turns_) turns_->wait(index, block_);
    share_tasks(num_runs * d.num_key_heads, [&](int task) {
      const RowTile rows = runs[task % num_runs];
      float* outputs = own_.values.data() + int64_t(rows.first_row - first_) * d.value_features();
      delta.mix(rows.first_row, rows.count, task / num_runs, place_.delta, outputs);
    });
    if (turns_) turns_->pass_on(index, block_);
  }

  // A sequence's rows one after the other, some channels by themselves.
  void convolve_rows(const Layer& layer, int index) {
    const ShortConvRows conv(*layer.conv, batch_, layer.cache_index, projected_, stride_);
    const std::vector<RowTile>& runs = place_.runs;
    const int num_runs = int(runs.size());
    if (turns_) turns_->wait(index, block_);
    share_tasks(num_runs * conv.num_tasks(), [&](int task) {
      const RowTile rows = runs[task % num_runs];
      float* outputs = own_.values.data() + int64_t(rows.first_row - first_) * layer.conv->channels;
      conv.mix(rows.first_row, rows.count, task / num_runs, outputs);
    });
    if (turns_) turns_->pass_on(index, block_);
  }

  // A sequence's rows one after the other: some channels by themselves, and then each head.
  void scan(const Layer& layer, int index) {
    const Mamba& m = *layer.mamba;
    const MambaRows mamba(m, batch_, layer.cache_index, m_.norm_eps, projected_, stride_);
    const std::vector<RowTile>& runs = place_.runs;
    const int num_runs = int(runs.size());
    const auto outputs = [&](int row) {
      return own_.values.data() + int64_t(row - first_) * m.features();
    };
    if (turns_) turns_->wait(index, block_);
    share_tasks(num_runs * mamba.num_conv_tasks(), [&](int task) {
      const RowTile rows = runs[task % num_runs];
      mamba.mix_channels(rows.first_row, rows.count, task / num_runs);
    });
    crew_.barrier();  // tasks are counted from the first again
    share_tasks(num_runs * m.num_heads, [&](int task) {
      const RowTile rows = runs[task % num_runs];
      mamba.scan(rows.first_row, rows.count, task / num_runs, outputs(rows.first_row));
    });
    if (turns_) turns_->pass_on(index, block_);
    const Share groups = crew_.share(num_rows_ * m.num_groups);
    for (int i = groups.begin; i < groups.end; i++) {
      const int row = first_ + i / m.num_groups;
      mamba.finish(row, i % m.num_groups, outputs(row));
    }
    crew_.barrier();
  }

  // Calls do_task(task) for each, by whoever of the crew is free.
  template <typename DoTask>
  void share_tasks(int num_tasks, DoTask do_task) {
    for (int task; (task = own_.next_task.fetch_add(1)) < num_tasks;) do_task(task);
    crew_.barrier();
    if (crew_.leads()) own_.next_task = 0;
  }

  // values = activation(gate) * up, or activation(up) where there are no gates, ready for `next`. Where
  // there are rows for everybody each is quantised while it is in the cache; else members share a row.
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
    const float* ups = m_.is_gated ? gates + m_.intermediate_size : nullptr;
    float* out = x.values + int64_t(row) * m_.intermediate_size;
    const auto activate = [&](auto activation) {
      for (int i = first * kLanes; i < last * kLanes; i += kLanes) {
        const f32x16 active = activation(load(gates + i));
        store(out + i, ups ? active * load(ups + i) : active);
      }
    };
    if (m_.activation == kGeluTanh) activate([](f32x16 x) { return gelu_tanh(x); });
    else activate([](f32x16 x) { return silu(x); });
  }

  // logits = cap * tanh(logits * multiplier / cap), of the vocabulary's panels that this member has.
  void finish_logits(const Share& panels) const {
    const int vocab_size = m_.head.out_features;
    const int first = panels.begin * kLanes, last = std::min(vocab_size, panels.end * kLanes);
    const float cap = m_.logit_cap;
    for (int row = 0; row < num_rows_; row++) {
      float* logits = batch_.logits + int64_t(row) * vocab_size;
      for (int i = first; i < last; i++) {
        const float x = logits[i] * m_.logit_multiplier;
        logits[i] = cap > 0 ? cap * std::tanh(x / cap) : x;
      }
    }
  }

  const Model& m_;
  const Batch& batch_;
  const int first_, num_rows_;
  const Crew crew_;
  float* const hidden_;     // of the first of the rows
  float* const projected_;  // of the batch
  const int stride_;        // of rows that are projected
  Scratch& own_;
  OwnPlace& place_;
  Turns* const turns_;
  const int block_;
};

}  // namespace helexa
