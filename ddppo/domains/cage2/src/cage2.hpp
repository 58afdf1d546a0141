// Games of CAGE challenge 2, in memory that Python owns.
#pragma once

#include <cstdint>

namespace ddppo {

constexpr int kHosts = 13, kObsPerHost = 4;

// One game: the record GAME of ddppo/domains/cage2/rules.py, where the fields are described. Sets of hosts and of
// ports are integers of bits.
struct Cage2Game {
  uint64_t key, time;
  uint16_t decoys[kHosts], seen[kHosts];
  uint16_t traced, lasting, root, files;
  uint16_t known, subnets, swept, scanned, exploited, escalated, entered;
  uint8_t belief[kHosts];
  uint8_t operation, target;
  bool success;
  uint8_t phase, first;
  bool down, found, immune;
};

// The fields of `_Batch` in ddppo/domains/cage2/games.py. Its TABLES describe the tables.
struct Cage2Batch {
  int64_t num_games;
  int64_t red;  // 0 sleep, 1 B_line, 2 Meander
  int64_t has_green, has_quirk;
  double preferred, detected;
  Cage2Game* games;
  float* obs;  // [n, 52]
  double* rewards;
  const int64_t* actions;
  const int64_t *tenths, *host_of, *num_exploits, *green;
  const uint16_t *subnet, *first, *reveals, *open;
  const uint16_t *analysed, *removed, *restored, *freed, *opened, *checked;
  const uint16_t* exploit_port;
  const uint8_t *outcome, *nth_exploit;
  const uint8_t *operations, *after_failure, *targets, *activity;
};

extern "C" {
// Step each game of the batch by its action, a number of the challenge's action space.
void cage2_step(Cage2Batch* batch);

int64_t cage2_game_bytes();
}

}  // namespace ddppo
