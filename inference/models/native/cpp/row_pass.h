// One crew's work on consecutive rows of a batch, step by step through the layers. A barrier stands
// wherever a step reads what another member of the crew wrote.
#pragma once

#include <algorithm>

#include "attention.h"
#include "buffers.h"
#include "convolution.h"
#include "experts.h"
#include "latent_attention.h"
#include "linear.h"
#include "model.h"
#include "recurrent.h"
#include "rows.h"
#include "simd.h"
#include "thread_team.h"

namespace helexa {

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
    place_.cut_into_tiles(model, batch, first, last);
    if (!batch.adapters) return;
    place_.adapted.sort(num_rows_, [&](int row) { return batch.adapters[batch.sequences[first + row]]; });
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

  // The rest of the last layer, and the logits of all of the rows; or the rows, where later layers read
  // them.
  void finish() {
    if (m_.num_layers > 0 && !batch_.ends_in_layers(m_)) finish_layer(m_.num_layers - 1);
    if (batch_.hidden_out) return give_rows();
    normalize(m_.final_norm, Projection{1, {m_.head}});
    share(m_.head, own_.activations(m_.hidden_size), num_rows_, crew_,
          {batch_.logits, m_.head.out_features});
    if (m_.logit_multiplier != 1.0f || m_.logit_cap > 0)
      finish_logits(m_, batch_.logits, num_rows_, crew_.share(m_.head.num_panels()));
  }

 private:
  LayerRows rows_of(const Layer& layer) const { return {m_, batch_, layer, projected_, stride_}; }
  float* hidden(int row) const { return hidden_ + int64_t(row) * m_.hidden_size; }

  // Calls use(row) for the member's share of the rows, and waits for the others.
  template <typename Use>
  HELEXA_INLINE void for_rows(Use use) {
    const Share rows = crew_.share(num_rows_);
    for (int row = rows.begin; row < rows.end; row++) use(row);
    crew_.barrier();
  }

  void give_rows() {
    const Share rows = crew_.share(num_rows_);
    std::copy_n(hidden(rows.begin), int64_t(rows.end - rows.begin) * m_.hidden_size,
                batch_.hidden_out + int64_t(rows.begin) * m_.hidden_size);
  }

  void embed() {
    if (m_.join) return join(*m_.join);
    for_rows([&](int row) {
      if (batch_.hidden_rows) {
        std::copy_n(batch_.hidden_rows + int64_t(first_ + row) * m_.hidden_size, m_.hidden_size,
                    hidden(row));
        return;
      }
      const int64_t image_row = image_row_of(batch_, first_ + row);
      if (image_row < 0) {
        embed_row(m_, int(batch_.token_ids[first_ + row]), hidden(row));
      } else {
        std::copy_n(batch_.images->embeddings + image_row * m_.hidden_size, m_.hidden_size,
                    hidden(row));
      }
    });
  }

  void join(const Join& join) {
    const Activations x = own_.activations(2 * m_.hidden_size);
    for_rows([&](int row) {
      float* both = x.values + int64_t(row) * x.width;
      embed_row(m_, int(batch_.token_ids[first_ + row]), both);
      norm_row(m_, join.embedding, both, both);
      norm_row(m_, join.hidden, batch_.hidden_rows + int64_t(first_ + row) * m_.hidden_size,
               both + m_.hidden_size);
      quantize_for(join.product, x, row);
    });
    share(join.product, x, num_rows_, crew_, {hidden_, m_.hidden_size});
    crew_.barrier();
  }

  // Adds the images' deepstack rows after one of the first layers.
  void add_deepstack(int layer) {
    if (!batch_.images || layer >= batch_.images->num_deepstack) return;
    for_rows([&](int row) { add_deepstack_row(m_, batch_, layer, first_ + row, hidden(row)); });
  }

  void begin_layer(int index) {
    const Layer& layer = m_.layers[index];
    normalize(layer.input_norm, layer.qkv);
    project(index, kQkv, layer.qkv, projected_ + int64_t(first_) * stride_, stride_, false);
    if (layer.has_state()) return;
    if (layer.latent) return keep_latents(layer, index);
    const RowAttention<KV> attention(rows_of(layer));
    for_rows([&](int row) { attention.rotate_and_cache(first_ + row); });
  }

  // The rows' queries where they come of what is compressed, and what is kept of the rows.
  void keep_latents(const Layer& layer, int index) {
    const Latent& l = *layer.latent;
    float* first = projected_ + int64_t(first_) * stride_;
    if (l.query_rank) {
      const Activations x = own_.activations(l.query_rank);
      for_rows([&](int row) {
        float* values = x.values + int64_t(row) * x.width;
        rms_norm_row(first + int64_t(row) * stride_, l.query_norm, x.width, m_.norm_eps, values);
        quantize_for(l.queries, x, row);
      });
      project(index, kQueries, l.queries, first + l.query_rank + l.width(), stride_, false);
    }
    const LatentRows<KV> latents(rows_of(layer));
    for_rows([&](int row) { latents.rotate_and_keep(first_ + row); });
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

  // The outputs of both parts meet in the scratch: the rows stay as they are until both have read them.
  void finish_parallel_layer(const Layer& layer, int index) {
    go_up(layer, index, layer.input_norm);
    project(index, kDown, layer.down, own_.added.data(), m_.hidden_size, false);
    mix(layer, index);
    project(index, kOutput, layer.output, own_.added.data(), m_.hidden_size, true);
    add_to_rows(Norm{});
  }

  // values = the mixer's outputs, ready for the layer's output projection.
  void mix(const Layer& layer, int index) {
    if (layer.conv) convolve_rows(layer, index);
    else if (layer.mamba) scan(layer, index);
    else if (layer.delta) update_states(layer, index);
    else if (layer.latent) attend_to_latents(layer);
    else attend(layer);
    quantize(layer.output.in_features(), layer.output);
  }

  // values = the inner features of the layer's MLP, ready for its down projection.
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
    for_rows([&](int row) {
      float *to = hidden(row), *added = own_.added.data() + int64_t(row) * m_.hidden_size;
      norm_row(m_, after, added, added);
      for (int i = 0; i < m_.hidden_size; i++) to[i] += added[i] * m_.residual_multiplier;
    });
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

  // `next`: the Projection, or the Experts, that read what comes out.
  template <typename Next>
  void normalize(const Norm& norm, const Next& next) {
    const Activations x = own_.activations(m_.hidden_size);
    for_rows([&](int row) {
      norm_row(m_, norm, hidden(row), x.values + int64_t(row) * m_.hidden_size);
      quantize_for(next, x, row);
    });
  }

  // Quantises the scratch's values for `next`, split by groups so that one row has work for all members.
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

  void project(int layer, AdaptedKind kind, const Projection& w, float* out, int64_t stride, bool add) {
    share(w, own_.activations(w.in_features()), num_rows_, crew_, {out, stride}, add);
    if (batch_.adapters && !place_.adapted.empty())
      place_.adapted.adapt(layer, kind, own_.activations(w.in_features()), own_.inner.data(),
                           batch_.inner_width, crew_, out, stride);
    crew_.barrier();
  }

  void attend(const Layer& layer) {
    const RowAttention<KV> attention(rows_of(layer));
    const std::vector<RowTile>& tiles = place_.row_tiles;
    const int num_tiles = int(tiles.size());
    share_tasks(num_tiles * m_.num_kv_heads, [&](int task) {
      const RowTile rows = tiles[task % num_tiles];
      float* outputs = own_.values.data() + int64_t(rows.first_row - first_) * m_.query_width();
      attention.attend(rows, task / num_tiles, place_.tile, outputs);
    });
  }

  // Each head's queries become as wide as latents, sum up latents, and make the head's values of them.
  void attend_to_latents(const Layer& layer) {
    const LatentRows<KV> latents(rows_of(layer));
    const int num_heads = m_.num_heads, num_pieces = (num_rows_ + kTileRows - 1) / kTileRows;
    const auto absorbed = [&](int row) {
      return own_.absorbed.data() + int64_t(row) * m_.query_width();
    };
    const auto size_of = [&](int row) { return std::min(kTileRows, num_rows_ - row); };
    share_tasks(num_pieces * num_heads, [&](int task) {
      const int row = task % num_pieces * kTileRows, head = task / num_pieces;
      latents.absorb(first_ + row, size_of(row), head, place_.latent, absorbed(row));
    });
    crew_.barrier();  // tasks are counted from the first again
    const std::vector<RowTile>& tiles = place_.row_tiles;
    const int num_tiles = int(tiles.size());
    const int most_queries = std::max(kTileQueries, num_heads);
    share_tasks(num_tiles * ((most_queries + kLanes - 1) / kLanes), [&](int task) {
      const RowTile rows = tiles[task % num_tiles];
      latents.attend(rows, task / num_tiles * kLanes, place_.latent, absorbed(rows.first_row - first_));
    });
    crew_.barrier();
    const int width = num_heads * layer.latent->value_dim;
    share_tasks(num_pieces * num_heads, [&](int task) {
      const int row = task % num_pieces * kTileRows, head = task / num_pieces;
      float* outputs = own_.values.data() + int64_t(row) * width;
      latents.make_values(size_of(row), head, place_.latent, absorbed(row), outputs);
    });
  }

  // Each key head of a sequence's rows by itself.
  void update_states(const Layer& layer, int index) {
    const DeltaNet& d = *layer.delta;
    const DeltaRows delta(rows_of(layer));
    wait_for_turn(index);
    share_sequences(d.num_key_heads, [&](RowTile rows, int head) {
      float* outputs = own_.values.data() + int64_t(rows.first_row - first_) * d.value_features();
      delta.mix(rows.first_row, rows.count, head, place_.delta, outputs);
    });
    pass_turn_on(index);
  }

  // Some channels of a sequence's rows by themselves.
  void convolve_rows(const Layer& layer, int index) {
    const ShortConvRows conv(rows_of(layer));
    wait_for_turn(index);
    share_sequences(conv.num_tasks(), [&](RowTile rows, int channels) {
      float* outputs = own_.values.data() + int64_t(rows.first_row - first_) * layer.conv->channels;
      conv.mix(rows.first_row, rows.count, channels, outputs);
    });
    pass_turn_on(index);
  }

  // Some channels of a sequence's rows by themselves, and then each head.
  void scan(const Layer& layer, int index) {
    const Mamba& m = *layer.mamba;
    const MambaRows mamba(rows_of(layer));
    const auto outputs = [&](int row) {
      return own_.values.data() + int64_t(row - first_) * m.features();
    };
    wait_for_turn(index);
    share_sequences(mamba.num_conv_tasks(), [&](RowTile rows, int channels) {
      mamba.mix_channels(rows.first_row, rows.count, channels);
    });
    crew_.barrier();  // tasks are counted from the first again
    share_sequences(m.num_heads, [&](RowTile rows, int head) {
      mamba.scan(rows.first_row, rows.count, head, outputs(rows.first_row));
    });
    pass_turn_on(index);
    const Share groups = crew_.share(num_rows_ * m.num_groups);
    for (int i = groups.begin; i < groups.end; i++) {
      const int row = first_ + i / m.num_groups;
      mamba.finish(row, i % m.num_groups, outputs(row));
    }
    crew_.barrier();
  }

  // States of a layer go from block to block: in order, where each block has a pass of its own.
  void wait_for_turn(int layer) {
    if (turns_) turns_->wait(layer, block_);
  }
  void pass_turn_on(int layer) {
    if (turns_) turns_->set(layer, block_ + 1);
  }

  // Calls do_part(rows, part) for each part of the work on each sequence's rows, which are done one after
  // the other.
  template <typename DoPart>
  void share_sequences(int num_parts, DoPart do_part) {
    const std::vector<RowTile>& runs = place_.runs;
    const int num_runs = int(runs.size());
    share_tasks(num_runs * num_parts,
                [&](int task) { do_part(runs[task % num_runs], task / num_runs); });
  }

  // Calls do_task(task) for each; a member of the crew takes the next when it is free.
  template <typename DoTask>
  void share_tasks(int num_tasks, DoTask do_task) {
    for (int task; (task = own_.next_task.fetch_add(1)) < num_tasks;) do_task(task);
    crew_.barrier();
    if (crew_.leads()) own_.next_task = 0;
  }

  // values = activation(gate) * up, or activation(up) where there are no gates, ready for `next`. Where
  // there are rows for all members each is quantised while it is in the cache; else members share a row.
  void gate(const Projection& next) {
    const Activations x = own_.activations(m_.intermediate_size);
    if (num_rows_ < crew_.size()) {
      const Share columns = crew_.share(m_.intermediate_size / kLanes);
      for (int row = 0; row < num_rows_; row++) gate_row(row, columns.begin, columns.end, x);
      crew_.barrier();
      quantize(m_.intermediate_size, next);
      return;
    }
    for_rows([&](int row) {
      gate_row(row, 0, m_.intermediate_size / kLanes, x);
      quantize_for(next, x, row);
    });
  }

  void gate_row(int row, int first, int last, const Activations& x) const {
    helexa::gate_row(m_, own_.gate_up.data() + int64_t(row) * own_.gate_up_stride, first, last,
                     x.values + int64_t(row) * m_.intermediate_size);
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
  Progress* const turns_;
  const int block_;
};

}  // namespace helexa
