// Two entry points for ddppo/ppo/cpp:
//
//   rollout_act     acts on one row of observations, for environments that are not stepped in C++ (CppActing)
//   rollout_record  a whole rollout in one call: T times act and step a batch of tasks, then the values (CppRollout)
//
// Both write into the buffers of ddppo/ppo/collector.py, and rollout_record does what Collector.collect does.
#include <chrono>

#include "acting.hpp"
#include "tasks.hpp"

namespace ddppo {

extern "C" void network_values(void* network, const void* obs, int64_t n, void* values);  // learn.cpp

// The arguments of rollout_record. RolloutArgs of ddppo/ppo/cpp/rollout.py has the same fields in the same order.
struct RolloutArgs : ActingBuffers {
  TaskBatch* tasks;
  int64_t num_steps;  // T, the most steps of a rollout
  int64_t num_ends;   // out: episodes that ended
  int64_t is_finite;  // out: whether all observations and rewards were
  int64_t num_taken;  // out: steps taken; fewer than T if the rollout was cut
  // When to cut the rollout, as Cut of ddppo/ppo/rollout.py. Other ranks write into cells meanwhile. deadline: in
  // seconds of std::chrono::steady_clock.
  int64_t least_steps, number, awaited, num_cells;
  double deadline;
  const int64_t* cells;
  // [T + 1, E, obs_size]; equal to obs without a normaliser. With one, the tasks' double may be kept beside float obs.
  int64_t is_raw_double;
  void* raw_obs;
  const void *mean, *scale;                      // [obs_size] of the normaliser, or null
  const double* offset;                          // [obs_size], subtracted from raw doubles before their cast, or null
  void *values, *next_values;                    // [T + 1, E] and [T, E], or null
  double* rewards;                               // [T, E]
  bool *terminated, *truncated, *episode_start;  // [T, E]
  // [E] in and out, of the episodes under way: whether the next step begins one, returns and lengths so far.
  bool* starts;
  double* returns;
  int64_t* lengths;
  // out: the episodes that ended, by step and then by environment. The first num_ends entries of [T * E] are written.
  int64_t *end_steps, *end_envs;
  double* end_returns;
  int64_t* end_lengths;
  void *final_obs, *final_values;  // [T * E, obs_size] in the type of raw_obs, and [T * E]
};

namespace {

template <class Real, class Raw>  // of the model, and of raw_obs
class Recorder {
 public:
  explicit Recorder(RolloutArgs& buffers)
      : b_(buffers), tasks_(*buffers.tasks), actor_(buffers), envs_(buffers.num_envs), size_(buffers.obs_size) {}

  // Fill the buffers with one rollout.
  void record() {
    // The last observations of the previous rollout are row 0 of this one. They are normalised again, because the
    // moments have moved since.
    std::copy_n(raw(b_.raw_obs) + b_.num_steps * envs_ * size_, envs_ * size_, raw(b_.raw_obs));
    normalize(raw(b_.raw_obs), envs_, of(b_.obs));
    std::copy_n(b_.starts, envs_, b_.episode_start);
    b_.num_ends = 0;
    b_.is_finite = true;
    // Act, step, store.
    bool is_over = false;
    for (long t = 0; !is_over; t++) {
      actor_.act(t);
      set_commands(t);
      tasks_.num_steps++;
      b_.num_taken = t + 1;
      is_over = b_.num_taken == b_.num_steps || is_cut();
      receive(t, tasks_.step(&tasks_), is_over);
    }
    // The next rollout begins with row T, also after a cut.
    const long row = envs_ * size_;
    std::copy_n(raw(b_.raw_obs) + b_.num_taken * row, row, raw(b_.raw_obs) + b_.num_steps * row);
    if (b_.values) value();
  }

 private:
  static Real* of(void* p) { return static_cast<Real*>(p); }
  static const Real* of(const void* p) { return static_cast<const Real*>(p); }
  static Raw* raw(void* p) { return static_cast<Raw*>(p); }

  // Copy n observations of the tasks, from the first-th on, and cast them.
  void copy_obs(const void* tasks_obs, long first, long n, Raw* to) const {
    if (tasks_.is_obs_double)
      std::copy_n(static_cast<const double*>(tasks_obs) + first * size_, n * size_, to);
    else
      std::copy_n(static_cast<const float*>(tasks_obs) + first * size_, n * size_, to);
  }

  // Hand the actions of row t to the tasks; forces are float32.
  void set_commands(long t) {
    const long n = envs_ * b_.num_noise, at = t * n;
    if (b_.kind >= Actor<Real>::kBox)
      std::copy_n(static_cast<const Real*>(b_.actions) + at, n, static_cast<float*>(tasks_.actions));
    else
      std::copy_n(static_cast<const int64_t*>(b_.actions) + at, n, static_cast<int64_t*>(tasks_.actions));
  }

  // Return whether to end the rollout now: enough other ranks have ended theirs, or the time is over.
  bool is_cut() const {
    if (b_.num_taken < b_.least_steps) return false;
    int64_t num = 0;
    for (long k = 0; k < b_.num_cells; k++) num += __atomic_load_n(b_.cells + k, __ATOMIC_RELAXED) >= b_.number;
    if (num >= b_.awaited) return true;
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    return now.count() >= b_.deadline;
  }

  // Store the results of row t, and the new observations in row t + 1. is_last: no row follows in this rollout, so the
  // flags of episode starts are kept for the next one.
  void receive(long t, long num_ended, bool is_last) {
    const long row = t * envs_;
    Raw* raw_obs = raw(b_.raw_obs) + (row + envs_) * size_;
    copy_obs(tasks_.obs, 0, envs_, raw_obs);
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
      Raw* final_obs = raw(b_.final_obs) + end * size_;
      copy_obs(tasks_.final_obs, k, 1, final_obs);
      check(final_obs, size_);
    }
  }

  // Clear is_finite if a number is NaN or infinite. Python then searches the first one, and raises.
  template <class Number>
  void check(const Number* x, long n) {
    bool is_finite = true;
    for (long k = 0; k < n; k++) is_finite &= x[k] - x[k] == 0;  // of NaN and infinity it is NaN
    b_.is_finite &= is_finite;
  }

  // Values of all observations. The value of the next observation bootstraps a row; in a row that ends an episode, the
  // value of the final observation takes its place.
  void value() {
    const long n = b_.num_taken * envs_;
    network_values(b_.network, b_.obs, n + envs_, b_.values);
    std::copy_n(of(b_.values) + envs_, n, of(b_.next_values));
    normalized_.resize(b_.mean ? b_.num_ends * size_ : 0);
    normalize(raw(b_.final_obs), b_.num_ends, normalized_.data());
    network_values(b_.network, b_.mean ? normalized_.data() : of(b_.final_obs), b_.num_ends, b_.final_values);
    for (long end = 0; end < b_.num_ends; end++)
      of(b_.next_values)[b_.end_steps[end] * envs_ + b_.end_envs[end]] = of(b_.final_values)[end];
  }

  // Normalise observations as ObsNormalizer of ddppo/ppo/normalization.py does.
  void normalize(const Raw* raw_obs, long rows, Real* obs) {
    if (!b_.mean) return;
    for (long r = 0; r < rows; r++)
      for (long k = 0; k < size_; k++) {
        const Raw given = raw_obs[r * size_ + k];
        const Real cast = b_.offset ? given - b_.offset[k] : given;
        const Real x = (cast - of(b_.mean)[k]) * of(b_.scale)[k];
        obs[r * size_ + k] = x < -10 ? -10 : x > 10 ? 10 : x;
      }
  }

  RolloutArgs& b_;
  TaskBatch& tasks_;
  Actor<Real> actor_;
  const long envs_, size_;
  std::vector<Real> normalized_;
};

}  // namespace

extern "C" void rollout_act(const ActingBuffers* buffers, int64_t t) {
  buffers->is_double ? Actor<double>(*buffers).act(t) : Actor<float>(*buffers).act(t);
}

extern "C" void rollout_record(RolloutArgs* buffers) {
  if (buffers->is_double)
    Recorder<double, double>(*buffers).record();
  else if (buffers->is_raw_double)
    Recorder<float, double>(*buffers).record();
  else
    Recorder<float, float>(*buffers).record();
}

}  // namespace ddppo
