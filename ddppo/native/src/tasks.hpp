// Batches of the classic tasks, in memory that Python owns.
#pragma once

#include <cstdint>

namespace ddppo {

// NumPy's PCG64: the state and the increment, 128 bits each.
struct Generator {
  uint64_t state_high, state_low, increment_high, increment_low;
};

// E environments of one task: the fields of NativeEnvs in ddppo/envs/backends/classic_cpp.py, where a structure mirrors
// this one.
struct TaskBatch {
  int64_t task, num_envs, obs_size;
  int64_t num_steps, max_episode_steps;
  double setting;  // of CartPole: by Sutton and Barto; of Pendulum: gravity; of the mountain cars: velocity at the goal
  double* state;   // [S, E]
  float* obs;      // [E, obs_size]
  double* rewards;
  bool* terminated;
  bool* truncated;
  int64_t* last_steps;
  int64_t* ended;     // the first n entries of [E]
  float* final_obs;   // the first n rows of [E, obs_size]
  void* actions;      // [E]: int64_t of a discrete task, float of one with forces
  Generator* generators;
};

extern "C" {
// Put environment i into a first state, with its observation.
void tasks_reset(TaskBatch* batch, int64_t i);

// Step all by the actions in the batch. Return how many episodes ended, or -1 - i where environment i has no such action.
int64_t tasks_step(TaskBatch* batch);
}

}  // namespace ddppo
