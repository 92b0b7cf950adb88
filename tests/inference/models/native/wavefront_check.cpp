// Runs blocks through stages on a team whose members dawdle at random, and looks at each one's start
// whether it was its turn: rows see the blocks in front, or all. Prints what was wrong; exits 1 then.
//
//     wavefront_check THREADS STAGES BLOCKS

#include "thread_team.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>

int main(int, char** arguments) {
  const int threads = std::atoi(arguments[1]), stages = std::atoi(arguments[2]);
  const int blocks = std::atoi(arguments[3]);
  helexa::ThreadTeam team(threads);
  helexa::Wavefront wavefront;
  std::atomic<int> num_wrong{0};
  for (int run = 0; run < 10; run++) {
    const bool sees_ahead = run % 2;
    std::vector<std::atomic<int>> done(blocks);
    wavefront.reset(stages, blocks, sees_ahead);
    team.run([&](int member) {
      std::mt19937 random(100 * run + member);
      wavefront.work([&](int stage, int block) {
        num_wrong += done[block] != stage;
        const int seen = sees_ahead ? blocks : block;
        for (int other = 0; other < seen; other++) num_wrong += done[other] < stage;
        if (random() % 4 == 0) usleep(random() % 1000);
        done[block]++;
      });
    });
    for (auto& each : done) num_wrong += each != stages;
  }
  if (num_wrong > 0) std::printf("%d starts or ends out of turn\n", num_wrong.load());
  return num_wrong > 0;
}
