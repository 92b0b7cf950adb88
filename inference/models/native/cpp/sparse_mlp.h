// A mixture of experts in place of a layer's MLP, for the rows that a crew has in hand.
//
//   scores of the router ─▶ k experts of each row ─▶ entries, sorted by expert (routes.h)
//   as many entries at a time as there are tiles for:
//     rows into their expert's tiles ─▶ gate|up ─▶ silu(gate) * up * weight ─▶ down ─▶ + to the rows
//
// An expert's weights are read for all its rows at once. Members of a crew share each expert's panels. A
// row's experts are added to it one after the other, the lowest first, so that its sum depends neither on
// the crew nor on the other rows.
#pragma once

#include <algorithm>

#include "activations.h"
#include "buffers.h"
#include "linear.h"
#include "model.h"
#include "routes.h"
#include "simd.h"
#include "thread_team.h"

namespace helexa {

class SparseMlp {
 public:
  // Of `num_rows` rows, `x` normalised, and quantised where experts read codes. `scratch` is the crew's,
  // `routes` the member's own.
  SparseMlp(const Experts& experts, const Activations& x, int num_rows, const Crew& crew,
            ExpertScratch& scratch, Routes& routes)
      : e_(experts), x_(x), num_rows_(num_rows), crew_(crew), own_(scratch), routes_(routes) {}

  // Adds what experts say to the rows at `hidden`, (num_rows, x.width).
  void add_to(float* hidden) {
    const Share panels = crew_.share(e_.router.num_panels());
    linear(e_.router, x_, num_rows_, panels.begin, panels.end, {own_.scores.data(), e_.num_scores()},
           false);
    crew_.barrier();
    routes_.sort(e_, own_.scores.data(), num_rows_);
    for (At at{0, 0}; at.entry < routes_.num_entries();) at = add_batch(at, hidden);
  }

 private:
  // Before which entry, and which expert has it.
  struct At {
    int expert, entry;
  };

  // Entries of one expert, as many as there is room for, in tiles of their own.
  struct Piece {
    int expert, first, count, tile;
  };

  // Calls `use` for the pieces of the batch that begins with `at`. Returns where the next one begins. An
  // expert that finds too little room left waits for the next batch, where it may have all.
  template <typename Use>
  At for_pieces(At at, Use use) const {
    for (int tile = 0; tile < own_.num_tiles && at.entry < routes_.num_entries();) {
      while (routes_.end(at.expert) <= at.entry) at.expert++;
      const int wanted = routes_.end(at.expert) - at.entry;
      const int tiles_wanted = (wanted + kTileRows - 1) / kTileRows, tiles_left = own_.num_tiles - tile;
      if (tiles_wanted > tiles_left && tile > 0) break;
      const int count = std::min(wanted, tiles_left * kTileRows);
      use(Piece{at.expert, at.entry, count, tile});
      at.entry += count;
      tile += tiles_wanted;
    }
    return at;
  }

  At add_batch(At at, float* hidden) {
    gather(at);
    for_pieces(at, [&](const Piece& piece) {
      const Projection& w = e_.gate_up[piece.expert];
      const Share panels = crew_.share(w.num_panels());
      float* out = own_.gate_up.data() + int64_t(piece.tile) * kTileRows * own_.gate_up_stride;
      project(w, inputs(piece), piece.count, panels.begin, panels.end, {out, own_.gate_up_stride}, false);
    });
    crew_.barrier();
    gate(at);
    crew_.barrier();
    const At next = for_pieces(at, [&](const Piece& piece) {
      const Projection& w = e_.down[piece.expert];
      const Share panels = crew_.share(w.num_panels());
      project(w, inner(piece), piece.count, panels.begin, panels.end,
              {hidden, x_.width, routes_.rows() + piece.first}, true);
    });
    crew_.barrier();
    return next;
  }

  // Whether a piece's rows lie in tiles of the input as they are.
  bool is_in_place(const Piece& piece) const {
    const int32_t* rows = routes_.rows() + piece.first;
    return rows[0] % kTileRows == 0 && rows[piece.count - 1] - rows[0] == piece.count - 1;
  }

  Activations inputs(const Piece& piece) const {
    const int num_groups = x_.num_groups();
    if (is_in_place(piece)) {
      const int row = routes_.rows()[piece.first];
      return {x_.values + int64_t(row) * x_.width, x_.tile(row), x_.width};
    }
    return {own_.inputs.data() + int64_t(piece.tile) * kTileRows * x_.width,
            own_.input_groups.data() + int64_t(piece.tile) * num_groups, x_.width};
  }

  Activations inner(const Piece& piece) const {
    const int width = e_.down[piece.expert].in_features();
    return {own_.values.data() + int64_t(piece.tile) * kTileRows * own_.inner_groups * kGroup,
            own_.groups.data() + int64_t(piece.tile) * own_.inner_groups, width};
  }

  // Rows of the batch into their experts' tiles. Nobody waits where all lie right already.
  void gather(At at) const {
    int entry = 0, moved = 0;
    const Share mine = crew_.share(count_moved(at));
    for_pieces(at, [&](const Piece& piece) {
      if (is_in_place(piece)) return;
      const Activations to = inputs(piece);
      for (int i = 0; i < piece.count; i++, entry++)
        if (entry >= mine.begin && entry < mine.end) move_row(routes_.rows()[piece.first + i], to, i);
      moved += piece.count;
    });
    if (moved > 0) crew_.barrier();
  }

  int count_moved(At at) const {
    int count = 0;
    for_pieces(at, [&](const Piece& piece) { count += is_in_place(piece) ? 0 : piece.count; });
    return count;
  }

  void move_row(int from, const Activations& to, int row) const {
    if (e_.reads_values())
      std::copy_n(x_.values + int64_t(from) * x_.width, x_.width, to.values + int64_t(row) * x_.width);
    if (!e_.reads_codes()) return;
    const TileGroup* source = x_.tile(from);
    TileGroup* target = to.tile(row);
    for (int g = 0; g < x_.num_groups(); g++)
      target[g].take(row % kTileRows, source[g], from % kTileRows);
  }

  // values = silu(gate) * up * weight, or silu(gate * weight) * up * weight, ready for `down`.
  void gate(At at) const {
    int entry = 0, total = 0;
    for_pieces(at, [&](const Piece& piece) { total += piece.count; });
    const Share mine = crew_.share(total);
    for_pieces(at, [&](const Piece& piece) {
      const Projection& next = e_.down[piece.expert];
      const Activations x = inner(piece);
      for (int row = 0; row < piece.count; row++, entry++) {
        if (entry < mine.begin || entry >= mine.end) continue;
        gate_row(x, piece, row);
        if (next.reads_codes()) quantize_row(x, row, next.reads_half_sums());
      }
    });
  }

  // The width is a multiple of kLanes.
  void gate_row(const Activations& x, const Piece& piece, int row) const {
    const float weight = routes_.weights()[piece.first + row];
    const float* gates = own_.gate_up.data() + (int64_t(piece.tile) * kTileRows + row) * own_.gate_up_stride;
    const float* ups = gates + x.width;
    float* out = x.values + int64_t(row) * x.width;
    // Products are linear: an input's weight is in its gate and in what goes up alike.
    const float of_input = e_.weighs_inputs ? weight : 1.0f;
    for (int i = 0; i < x.width; i += kLanes) {
      const f32x16 g = load(gates + i) * of_input;
      store(out + i, g / (1.0f + exp(-g)) * load(ups + i) * weight);
    }
  }

  const Experts& e_;
  const Activations x_;
  const int num_rows_;
  const Crew crew_;
  ExpertScratch& own_;
  Routes& routes_;
};

}  // namespace helexa
