// A rollout in one call: T steps of a batch of tasks, acted in by a network, into the buffers of
// ddppo/ppo/collector.py; then the values of all that was observed.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tasks.hpp"

namespace ddppo {

extern "C" {  // learn.cpp
void network_refresh(void* network);
void network_policy(void* network, const void* obs, int64_t n, void* params);
void network_values(void* network, const void* obs, int64_t n, void* values);
}

// Buffers of a collector, time-major; RolloutBuffers of ddppo/ppo/native_rollout.py mirrors this one. Real is float or
// double. K numbers of noise make an action: one for a choice, one for every dimension of a box.
struct RolloutBuffers {
  void* network;
  TaskBatch* tasks;
  int64_t is_double, is_box, num_steps, num_params, num_ends;
  const double* noise;                         // [T, E, K]
  void *raw_obs, *obs;                         // [T + 1, E, obs_size], the same where observations are not normalised
  const void *mean, *scale;                    // of the normaliser, or null
  void* actions;                               // [T, E] int64_t, or [T, E, K] Real
  void *params, *logprobs;                     // [T, E, num_params] and [T, E]
  void *values, *next_values;                  // [T + 1, E] and [T, E]
  double* rewards;                             // [T, E]
  bool *terminated, *truncated, *episode_start;  // [T, E]
  // [E], before and after: whether the next step begins an episode, and the sums of those under way.
  bool* starts;
  double* returns;
  int64_t* lengths;
  // Ends of episodes in the order of steps and environments, the first num_ends entries of [T E].
  int64_t *end_steps, *end_envs;
  double* end_returns;
  int64_t* end_lengths;
  void *final_obs, *final_values;  // as the task gave them, [T E, obs_size]
};

namespace {

template <class Real>
class Recorder {
 public:
  explicit Recorder(RolloutBuffers& buffers)
      : b_(buffers), tasks_(*buffers.tasks), envs_(tasks_.num_envs), size_(tasks_.obs_size),
        num_noise_(buffers.is_box ? buffers.num_params / 2 : 1) {}

  void record() {
    network_refresh(b_.network);
    std::copy_n(of(b_.raw_obs) + b_.num_steps * envs_ * size_, envs_ * size_, of(b_.raw_obs));
    normalize(of(b_.raw_obs), envs_, of(b_.obs));
    std::copy_n(b_.starts, envs_, b_.episode_start);
    b_.num_ends = 0;
    for (long t = 0; t < b_.num_steps; t++) {
      Real* params = of(b_.params) + t * envs_ * b_.num_params;
      network_policy(b_.network, of(b_.obs) + t * envs_ * size_, envs_, params);
      b_.is_box ? draw_forces(t, params) : draw_choices(t, params);
      tasks_.num_steps++;
      receive(t, tasks_step(&tasks_));
    }
    value();
  }

 private:
  static Real* of(void* p) { return static_cast<Real*>(p); }
  static const Real* of(const void* p) { return static_cast<const Real*>(p); }

  // Categorical.sample and log_prob of ddppo/models/distributions.py.
  void draw_choices(long t, const Real* params) {
    const Real below_one = 1 - std::numeric_limits<Real>::epsilon();
    const long n = b_.num_params;
    for (long i = 0; i < envs_; i++, params += n) {
      const long at = t * envs_ + i;
      const Real largest = *std::max_element(params, params + n);
      Real sum = 0;
      for (long k = 0; k < n; k++) cumulative_[k] = sum += std::exp(params[k] - largest);
      const Real threshold = std::min(static_cast<Real>(b_.noise[at]), below_one) * sum;
      int64_t choice = 0;
      for (long k = 0; k < n; k++) choice += cumulative_[k] <= threshold;
      static_cast<int64_t*>(b_.actions)[at] = static_cast<int64_t*>(tasks_.actions)[i] = choice;
      of(b_.logprobs)[at] = params[choice] - largest - std::log(sum);
    }
  }

  // Gaussian.sample and log_prob; the task clips.
  void draw_forces(long t, const Real* params) {
    const long n = num_noise_;
    const Real half_log_two_pi = Real(0.5 * std::log(2 * M_PI));
    for (long i = 0; i < envs_; i++, params += 2 * n) {
      const long at = t * envs_ + i;
      Real logprob = 0;
      for (long k = 0; k < n; k++) {
        const Real log_std = params[n + k];
        const Real action = params[k] + std::exp(log_std) * static_cast<Real>(b_.noise[at * n + k]);
        const Real z = (action - params[k]) * std::exp(-log_std);
        logprob += Real(-0.5) * z * z - log_std - half_log_two_pi;
        of(b_.actions)[at * n + k] = action;
        static_cast<float*>(tasks_.actions)[i * n + k] = action;
      }
      of(b_.logprobs)[at] = logprob;
    }
  }

  // What the tasks answered to the actions of row t.
  void receive(long t, long num_ended) {
    const long row = t * envs_;
    Real* raw_obs = of(b_.raw_obs) + (row + envs_) * size_;
    std::copy_n(tasks_.obs, envs_ * size_, raw_obs);
    normalize(raw_obs, envs_, of(b_.obs) + (row + envs_) * size_);
    bool* starts = t + 1 < b_.num_steps ? b_.episode_start + row + envs_ : b_.starts;
    for (long i = 0; i < envs_; i++) {
      b_.rewards[row + i] = tasks_.rewards[i];
      b_.terminated[row + i] = tasks_.terminated[i];
      b_.truncated[row + i] = tasks_.truncated[i];
      starts[i] = tasks_.terminated[i] || tasks_.truncated[i];
      b_.returns[i] += tasks_.rewards[i];
      b_.lengths[i]++;
    }
    for (long k = 0; k < num_ended; k++) {
      const long i = tasks_.ended[k], end = b_.num_ends++;
      b_.end_steps[end] = t;
      b_.end_envs[end] = i;
      b_.end_returns[end] = b_.returns[i];
      b_.end_lengths[end] = b_.lengths[i];
      b_.returns[i] = 0;
      b_.lengths[i] = 0;
      std::copy_n(tasks_.final_obs + k * size_, size_, of(b_.final_obs) + end * size_);
    }
  }

  void value() {
    const long n = b_.num_steps * envs_;
    network_values(b_.network, b_.obs, n + envs_, b_.values);
    std::copy_n(of(b_.values) + envs_, n, of(b_.next_values));
    normalized_.resize(b_.mean ? b_.num_ends * size_ : 0);
    normalize(of(b_.final_obs), b_.num_ends, normalized_.data());
    network_values(b_.network, b_.mean ? normalized_.data() : of(b_.final_obs), b_.num_ends, b_.final_values);
    for (long end = 0; end < b_.num_ends; end++)
      of(b_.next_values)[b_.end_steps[end] * envs_ + b_.end_envs[end]] = of(b_.final_values)[end];
  }

  // ObsNormalizer of ddppo/ppo/normalization.py.
  void normalize(const Real* raw_obs, long rows, Real* obs) {
    if (!b_.mean) return;
    for (long r = 0; r < rows; r++)
      for (long k = 0; k < size_; k++) {
        const Real x = (raw_obs[r * size_ + k] - of(b_.mean)[k]) * of(b_.scale)[k];
        obs[r * size_ + k] = x < -10 ? -10 : x > 10 ? 10 : x;
      }
  }

  RolloutBuffers& b_;
  TaskBatch& tasks_;
  const long envs_, size_, num_noise_;
  std::vector<Real> cumulative_ = std::vector<Real>(b_.num_params);
  std::vector<Real> normalized_;
};

}  // namespace

extern "C" void rollout_record(RolloutBuffers* buffers) {
  buffers->is_double ? Recorder<double>(*buffers).record() : Recorder<float>(*buffers).record();
}

}  // namespace ddppo
