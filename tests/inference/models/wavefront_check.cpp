// Runs blocks through stages on a team whose members dawdle at random, and looks at each one's start
// whether it was its turn. Prints what was wrong; exits 1 then.
//
//     wavefront_check THREADS STAGES BLOCKS

#include "wavefront.h"

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
  for (int run = 0; run < 5; run++) {
    std::vector<std::atomic<int>> done(blocks);
    wavefront.reset(stages, blocks);
    team.run([&](int member) {
      std::mt19937 random(100 * run + member);
      wavefront.work([&](int stage, int block) {
        num_wrong += done[block] != stage;
        for (int before = 0; before < block; before++) num_wrong += done[before] < stage;
        if (random() % 4 == 0) usleep(random() % 1000);
        done[block]++;
      });
    });
    for (auto& each : done) num_wrong += each != stages;
  }
  if (num_wrong > 0) std::printf("%d starts or ends out of turn\n", num_wrong.load());
  return num_wrong > 0;
}
