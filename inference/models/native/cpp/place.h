// Where a pass over rows works.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"
#include "buffers.h"
#include "experts.h"
#include "low_rank.h"
#include "model.h"
#include "recurrent.h"
#include "thread_team.h"

namespace helexa {

// Each member's own buffers. Room for a pass's tiles of rows is made before the team runs: a member that
// found no memory would leave the others waiting at the next barrier for ever.
struct OwnPlace {
  QueryTile tile;
  std::vector<RowTile> row_tiles, runs;
  Routes routes;
  DeltaScratch delta;
  LatentScratch latent;
  AdaptedRows adapted;

  // Rows [first, last) of `batch`, one sequence's each: as many as meet its keys together, and all.
  void cut_into_tiles(const Model& m, const Batch& batch, int first, int last) {
    const int most = std::max(1, kTileQueries / m.heads_per_kv_head());
    row_tiles.clear();
    runs.clear();
    for (int row = first; row < last; row++) {
      const bool joins = row > first && batch.sequences[row] == batch.sequences[row - 1] &&
                         batch.positions[row] > batch.positions[row - 1];
      if (joins && row_tiles.back().count < most) row_tiles.back().count++;
      else row_tiles.push_back({row, 1});
      if (joins) runs.back().count++;
      else runs.push_back({row, 1});
    }
  }
};

// The buffers of a pass: of all rows, of its own rows, and of the member.
struct Workplace {
  Buffers& all;
  Scratch& own;
  OwnPlace& member;
  Turns* turns = nullptr;  // of blocks of rows, where each has a pass of its own
  int block = 0;
};

}  // namespace helexa
