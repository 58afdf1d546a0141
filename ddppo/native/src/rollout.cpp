// Acting in one row, for environments stepped elsewhere; and a rollout in one call: T steps of a batch of tasks, acted in by a network, into the buffers of
// ddppo/ppo/collector.py; then the values of all that was observed.
#include <chrono>

#include "acting.hpp"
#include "tasks.hpp"

namespace ddppo {

extern "C" void network_values(void* network, const void* obs, int64_t n, void* values);  // learn.cpp

// RolloutBuffers of ddppo/ppo/cpp/rollout.py mirrors this one.
struct RolloutBuffers : ActingBuffers {
  TaskBatch* tasks;
  int64_t num_steps, num_ends, is_finite;  // is_finite: observations and rewards
  int64_t num_taken;                       // steps of this rollout
  // Cut of ddppo/ppo/rollout.py: others write cells meanwhile. deadline: of std::chrono::steady_clock, in seconds.
  int64_t least_steps, number, awaited, num_cells;
  double deadline;
  const int64_t* cells;
  void* raw_obs;                                 // [T + 1, E, obs_size]; obs itself where that is not normalised
  const void *mean, *scale;                      // of the normaliser, or null
  void *values, *next_values;                    // [T + 1, E] and [T, E]
  double* rewards;                               // [T, E]
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
      : b_(buffers), tasks_(*buffers.tasks), actor_(buffers), envs_(buffers.num_envs), size_(buffers.obs_size) {}

  void record() {
    std::copy_n(of(b_.raw_obs) + b_.num_steps * envs_ * size_, envs_ * size_, of(b_.raw_obs));
    normalize(of(b_.raw_obs), envs_, of(b_.obs));
    std::copy_n(b_.starts, envs_, b_.episode_start);
    b_.num_ends = 0;
    b_.is_finite = true;
    bool is_over = false;
    for (long t = 0; !is_over; t++) {
      actor_.act(t);
      command(t);
      tasks_.num_steps++;
      b_.num_taken = t + 1;
      is_over = b_.num_taken == b_.num_steps || is_cut();
      receive(t, tasks_step(&tasks_), is_over);
    }
    std::copy_n(of(b_.raw_obs) + b_.num_taken * envs_ * size_, envs_ * size_, of(b_.raw_obs) + b_.num_steps * envs_ * size_);
    value();
  }

 private:
  static Real* of(void* p) { return static_cast<Real*>(p); }
  static const Real* of(const void* p) { return static_cast<const Real*>(p); }

  void command(long t) {
    const long n = envs_ * b_.num_noise, at = t * n;
    if (b_.kind == Actor<Real>::kBox)
      std::copy_n(static_cast<const Real*>(b_.actions) + at, n, static_cast<float*>(tasks_.actions));
    else
      std::copy_n(static_cast<const int64_t*>(b_.actions) + at, n, static_cast<int64_t*>(tasks_.actions));
  }

  // Whether to end after the steps taken.
  bool is_cut() const {
    if (b_.num_taken < b_.least_steps) return false;
    int64_t num = 0;
    for (long k = 0; k < b_.num_cells; k++) num += __atomic_load_n(b_.cells + k, __ATOMIC_RELAXED) >= b_.number;
    if (num >= b_.awaited) return true;
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    return now.count() >= b_.deadline;
  }

  // What the tasks answered to the actions of row t; is_last: no row follows.
  void receive(long t, long num_ended, bool is_last) {
    const long row = t * envs_;
    Real* raw_obs = of(b_.raw_obs) + (row + envs_) * size_;
    std::copy_n(tasks_.obs, envs_ * size_, raw_obs);
    check(raw_obs, envs_ * size_);
    check(tasks_.rewards, envs_);
    normalize(raw_obs, envs_, of(b_.obs) + (row + envs_) * size_);
    bool* starts = is_last ? b_.starts : b_.episode_start + row + envs_;
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
      check(tasks_.final_obs + k * size_, size_);
    }
  }

  template <class Number>
  void check(const Number* x, long n) {
    bool is_finite = true;
    for (long k = 0; k < n; k++) is_finite &= x[k] - x[k] == 0;  // of NaN and infinity it is NaN
    b_.is_finite &= is_finite;
  }

  void value() {
    const long n = b_.num_taken * envs_;
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
  Actor<Real> actor_;
  const long envs_, size_;
  std::vector<Real> normalized_;
};

}  // namespace

extern "C" void rollout_act(const ActingBuffers* buffers, int64_t t) {
  buffers->is_double ? Actor<double>(*buffers).act(t) : Actor<float>(*buffers).act(t);
}

extern "C" void rollout_record(RolloutBuffers* buffers) {
  buffers->is_double ? Recorder<double>(*buffers).record() : Recorder<float>(*buffers).record();
}

}  // namespace ddppo
