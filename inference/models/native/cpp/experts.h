// A mixture of experts in place of a layer's MLP, for the rows that a crew has in hand.
//
//   scores of the router ─▶ k experts of each row ─▶ entries, sorted by expert (Routes)
//   as many entries at a time as there are tiles for:
//     rows into their expert's tiles ─▶ gate|up ─▶ silu(gate) * up * weight ─▶ down ─▶ + to the rows
//
// An expert's weights are read for all its rows at once. Members of a crew share each expert's panels. A
// row's experts are added to it one after the other, the lowest first, so that its sum depends neither on
// the crew nor on the other rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "activations.h"
#include "linear.h"
#include "model.h"
#include "simd.h"
#include "thread_team.h"

namespace helexa {

// The entries of some rows: one for each row and expert of that row, sorted by expert, and an expert's by
// row. A row that is no number has entries as any other, whose weights are no numbers either.
class Routes {
 public:
  // Room for `num_rows` rows: nothing that is done with them allocates.
  void reserve(const Experts& e, int num_rows) {
    const size_t num_entries = size_t(num_rows) * e.entries_per_row();
    grow(chosen_, num_entries);
    grow(chosen_weights_, num_entries);
    grow(rows_, num_entries);
    grow(weights_, num_entries);
    grow(ends_, e.num_all() + 1);
    grow(likely_, size_t(e.num_experts) + kLanes);
    grow(best_, std::max(e.per_token, e.groups_per_token));
    grow(worth_, e.num_groups);
  }

  // Chooses by `scores` (num_rows, e.num_scores()).
  void sort(const Experts& e, const float* scores, int num_rows) {
    const int per_row = e.entries_per_row(), num_all = e.num_all();
    for (int row = 0; row < num_rows; row++) {
      const float* own = scores + int64_t(row) * e.num_scores();
      choose(e, own, &chosen_[size_t(row) * per_row], &chosen_weights_[size_t(row) * per_row]);
    }
    std::fill_n(ends_.begin(), num_all + 1, 0);
    const int num_entries = num_rows * per_row;
    for (int i = 0; i < num_entries; i++) ends_[chosen_[i] + 1]++;
    for (int expert = 0; expert < num_all; expert++) ends_[expert + 1] += ends_[expert];
    // ends_[expert] is where it begins, and is moved to its end entry by entry.
    for (int i = 0; i < num_entries; i++) {
      const int at = ends_[chosen_[i]]++;
      rows_[at] = i / per_row;
      weights_[at] = chosen_weights_[i];
    }
    num_entries_ = num_entries;
  }

  int num_entries() const { return num_entries_; }
  int end(int expert) const { return ends_[expert]; }
  const int32_t* rows() const { return rows_.data(); }
  const float* weights() const { return weights_.data(); }

 private:
  template <typename T>
  static void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  }

  // Experts and weights of one row; of equal scores the first are taken.
  void choose(const Experts& e, const float* scores, int32_t* experts, float* weights) {
    if (e.choice_bias || e.num_groups > 1) {
      raise_scores(e, scores);
      if (e.num_groups > 1) leave_out_groups(e);
      choose_best(likely_.data(), e.num_experts, e.per_token);
    } else {
      choose_best(scores, e.num_experts, e.per_token);
    }
    if (e.scoring == kSigmoid) {
      for (int i = 0; i < e.per_token; i++) weights[i] = sigmoid(scores[best_[i]]);
    } else {
      soften(e, scores, weights);
    }
    if (e.normalizes) {
      float total = 0;
      for (int i = 0; i < e.per_token; i++) total += weights[i];
      for (int i = 0; i < e.per_token; i++) weights[i] /= total;
    }
    if (e.weight_scale != 1.0f)
      for (int i = 0; i < e.per_token; i++) weights[i] *= e.weight_scale;
    std::copy_n(best_.begin(), e.per_token, experts);
    if (!e.has_shared) return;
    experts[e.per_token] = e.num_experts;
    weights[e.per_token] = e.gates_shared() ? sigmoid(scores[e.num_experts]) : 1.0f;
  }

  // Sigmoids, or a softmax over all, and what raises them.
  void raise_scores(const Experts& e, const float* scores) {
    if (e.scoring == kSigmoid) {
      for (int i = 0; i < e.num_experts; i++) likely_[i] = sigmoid(scores[i]);
    } else {
      const float largest = *std::max_element(scores, scores + e.num_experts);
      float total = 0;
      for (int i = 0; i < e.num_experts; i++) total += likely_[i] = std::exp(scores[i] - largest);
      for (int i = 0; i < e.num_experts; i++) likely_[i] /= total;
    }
    if (e.choice_bias)
      for (int i = 0; i < e.num_experts; i++) likely_[i] += e.choice_bias[i];
  }

  // Minus infinity for experts outside the best groups. A group is worth its best expert, or its two best.
  void leave_out_groups(const Experts& e) {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    for (int group = 0; group < e.num_groups; group++) {
      float best = kNone, second = kNone;
      for (int i = group * e.per_group(); i < (group + 1) * e.per_group(); i++) {
        second = std::max(second, std::min(best, likely_[i]));
        best = std::max(best, likely_[i]);
      }
      worth_[group] = e.group_experts == 1 ? best : best + second;
    }
    choose_best(worth_.data(), e.num_groups, e.groups_per_token);
    const auto end = best_.begin() + e.groups_per_token;
    for (int i = 0; i < e.num_experts; i++)
      if (std::find(best_.begin(), end, i / e.per_group()) == end) likely_[i] = kNone;
  }

  void choose_best(const float* scores, int num_experts, int count) {
    int held = 0;
    for (int expert = 0; expert < num_experts; expert++) {
      // NaN compares false: some are taken all the same.
      if (held == count && !(scores[expert] > scores[best_[held - 1]])) continue;
      int at = held < count ? held++ : held - 1;
      for (; at > 0 && scores[expert] > scores[best_[at - 1]]; at--) best_[at] = best_[at - 1];
      best_[at] = expert;
    }
  }

  // Softmax over all experts, or over the chosen ones.
  void soften(const Experts& e, const float* scores, float* weights) {
    const bool is_of_chosen = e.scoring == kSoftmaxOfChosen;
    const int count = is_of_chosen ? e.per_token : e.num_experts;
    const int padded = (count + kLanes - 1) / kLanes * kLanes;
    for (int i = 0; i < count; i++) likely_[i] = scores[is_of_chosen ? best_[i] : i];
    std::fill(likely_.begin() + count, likely_.begin() + padded,
              -std::numeric_limits<float>::infinity());
    // The first of the chosen ones, unless a bias chose them.
    const f32x16 largest =
        splat(e.choice_bias ? *std::max_element(scores, scores + e.num_experts) : scores[best_[0]]);
    f32x16 totals{};
    for (int i = 0; i < padded; i += kLanes) {
      const f32x16 likely = exp(load(&likely_[i]) - largest);
      totals += likely;
      store(&likely_[i], likely);
    }
    const float total = sum(totals);
    for (int i = 0; i < e.per_token; i++) weights[i] = likely_[is_of_chosen ? i : best_[i]] / total;
  }

  static float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

  int num_entries_ = 0;
  std::vector<int32_t> chosen_, rows_, ends_, best_;
  std::vector<float> chosen_weights_, weights_, likely_, worth_;
};

// Kept between the steps of some experts' work.
struct ExpertScratch {
  Lines<float> scores, inputs, gate_up, values;
  Lines<TileGroup> input_groups, groups;
  int num_tiles = 0, gate_up_stride = 0, inner_groups = 0;

  void reserve(const Experts& e, int hidden_size, int num_rows, int most_tiles) {
    const int num_entries = num_rows * e.entries_per_row();
    // A tile for every eight entries, and one that is not full for each expert.
    const int needed = num_entries / kTileRows + std::min(num_entries, e.num_all());
    num_tiles = std::max(num_tiles, std::min(most_tiles, needed));
    gate_up_stride = std::max(gate_up_stride, 2 * e.intermediate_size + 2 * kLanes);
    inner_groups = std::max(inner_groups, e.intermediate_size / kGroup + 1);
    const size_t num_places = size_t(num_tiles) * kTileRows;
    grow(scores, size_t(num_rows) * e.num_scores());
    grow(inputs, e.reads_values() ? num_places * hidden_size : 0);
    grow(input_groups, size_t(num_tiles) * (hidden_size / kGroup + 1));
    grow(gate_up, num_places * gate_up_stride);
    grow(values, num_places * inner_groups * kGroup);
    grow(groups, size_t(num_tiles) * inner_groups);
  }
};

class SparseMlp {
 public:
  // `x`: `num_rows` rows, normalised, and quantised where experts read codes. `scratch` is the crew's,
  // `routes` the member's own.
  SparseMlp(const Experts& experts, const Activations& x, int num_rows, const Crew& crew,
            ExpertScratch& scratch, Routes& routes)
      : e_(experts), x_(x), num_rows_(num_rows), crew_(crew), own_(scratch), routes_(routes) {}

  // Adds the experts' outputs to the rows at `hidden`, (num_rows, x.width).
  void add_to(float* hidden) {
    share(e_.router, x_, num_rows_, crew_, {own_.scores.data(), e_.num_scores()});
    crew_.barrier();
    routes_.sort(e_, own_.scores.data(), num_rows_);
    for (At at{0, 0}; at.entry < routes_.num_entries();) at = add_batch(at, hidden);
  }

 private:
  // A place in front of an entry, and the expert that has the entry.
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
      float* out = own_.gate_up.data() + int64_t(piece.tile) * kTileRows * own_.gate_up_stride;
      share(e_.gate_up[piece.expert], inputs(piece), piece.count, crew_, {out, own_.gate_up_stride});
    });
    crew_.barrier();
    gate(at);
    crew_.barrier();
    const At next = for_pieces(at, [&](const Piece& piece) {
      const OutRows out{hidden, x_.width, routes_.rows() + piece.first};
      share(e_.down[piece.expert], inner(piece), piece.count, crew_, out, true);
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
      const Activations x = inner(piece);
      for (int row = 0; row < piece.count; row++, entry++) {
        if (entry < mine.begin || entry >= mine.end) continue;
        gate_row(x, piece, row);
        quantize_for(e_.down[piece.expert], x, row);
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
