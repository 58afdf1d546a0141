// Batches of tasks, in memory that Python owns: Gymnasium's classic-control tasks (tasks.cpp) and, in a library of their
// own, MuJoCo's robots (ddppo/envs/backends/mujoco.cpp).
#pragma once

#include <cstdint>

namespace ddppo {

// NumPy's PCG64: the state and the increment, 128 bits each.
struct Generator {
  uint64_t state_high, state_low, increment_high, increment_low;
};

// E environments of one task. TaskBatch of ddppo/envs/backends/classic_cpp.py has the same fields in the same order.
struct TaskBatch {
  // Step all environments with the actions in the batch, and reset those whose episode ends. Returns the number of
  // ends, or -1 - i if the action of environment i is not a valid choice.
  int64_t (*step)(TaskBatch* batch);
  int64_t task;  // place in kTasks of the task's source file
  int64_t num_envs, obs_size;
  int64_t num_steps;  // steps that the batch has done
  int64_t max_episode_steps;
  // The setting of a classic-control task. CartPole: not 0 for the rewards of Sutton and Barto. Pendulum: gravity.
  // Mountain cars: velocity at the goal.
  double setting;
  double* state;   // [S, E], of classic-control tasks
  int64_t is_obs_double;  // whether observations are double, of robots, or float, of classic-control tasks
  void* obs;       // [E, obs_size]
  double* rewards;   // [E]
  bool* terminated;  // [E]
  bool* truncated;   // [E]
  int64_t* last_steps;  // [E] value of num_steps at which the episode is truncated
  int64_t* ended;    // out: environments whose episode ended, the first n entries of [E]
  void* final_obs;  // out: their last observations, the first n rows of [E, obs_size]
  void* actions;      // [E]: int64_t of a discrete task, float of one with forces
  Generator* generators;  // [E], of classic-control tasks
};

extern "C" {
// Reset environment i and write its first observation.
void tasks_reset(TaskBatch* batch, int64_t i);

// `step` of a batch of classic-control tasks.
int64_t tasks_step(TaskBatch* batch);
}

}  // namespace ddppo
