// Generalised advantage estimation as in ddppo/ppo/advantages.py, and this rank's moments of advantages and returns as
// in ddppo/ppo/normalization.py, or those of its shards. Ranks merge them to normalise advantages alike.
#include <cmath>
#include <cstdint>

namespace {

// Write count, mean and sum of squared deviations of the valid numbers x(at) of a shard to moments[0], [3], [6]. The
// shard has the environments [first, first + num) of `envs`.
template <class F>
void write_moments(
    int64_t steps, int64_t envs, int64_t first, int64_t num, const uint8_t* valid, double* moments, F&& x) {
  auto for_each = [&](auto&& add) {
    for (int64_t t = 0; t < steps; t++)
      for (int64_t at = t * envs + first; at < t * envs + first + num; at++)
        if (valid[at]) add(x(at));
  };
  double count = 0, sum = 0, squares = 0;
  for_each([&](double number) {
    count += 1;
    sum += number;
  });
  const double mean = sum / (count > 1 ? count : 1);
  for_each([&](double number) { squares += (number - mean) * (number - mean); });
  moments[0] = count;
  moments[3] = mean;
  moments[6] = squares;
}

template <class Real>
void returns_and_moments(
    int64_t steps, int64_t envs, int64_t num_shards, const Real* rewards, const Real* values, const Real* next_values,
    const uint8_t* terminated, const uint8_t* truncated, const uint8_t* valid, Real gamma, Real decay,
    Real* advantages, Real* returns, double* moments) {
  // Backwards in time: A_t = delta_t + gamma lambda A_{t+1}. An end of an episode and a row that is not valid cut it.
  for (int64_t t = steps - 1; t >= 0; t--)
    for (int64_t i = 0; i < envs; i++) {
      const int64_t at = t * envs + i;
      const Real next = terminated[at] ? Real(0) : next_values[at];
      const Real delta = valid[at] ? rewards[at] + gamma * next - values[at] : Real(0);
      const bool goes_on = valid[at] && !terminated[at] && !truncated[at] && t + 1 < steps;
      advantages[at] = goes_on ? delta + decay * advantages[at + envs] : delta;
      returns[at] = advantages[at] + values[at];
    }
  // Moments [S, 3, 3] of shards of neighbouring environments; columns: advantages, returns, and returns - values.
  const int64_t num = envs / num_shards;
  for (int64_t s = 0; s < num_shards; s++) {
    double* own = moments + 9 * s;
    write_moments(steps, envs, s * num, num, valid, own, [&](int64_t at) { return double(advantages[at]); });
    write_moments(steps, envs, s * num, num, valid, own + 1, [&](int64_t at) { return double(returns[at]); });
    write_moments(
        steps, envs, s * num, num, valid, own + 2, [&](int64_t at) { return double(returns[at] - values[at]); });
  }
}

}  // namespace

extern "C" {

void returns_float(
    int64_t steps, int64_t envs, int64_t num_shards, const float* rewards, const float* values, const float* next_values,
    const uint8_t* terminated, const uint8_t* truncated, const uint8_t* valid, double gamma, double decay,
    float* advantages, float* returns, double* moments) {
  returns_and_moments<float>(
      steps, envs, num_shards, rewards, values, next_values, terminated, truncated, valid, float(gamma), float(decay), advantages,
      returns, moments);
}

void returns_double(
    int64_t steps, int64_t envs, int64_t num_shards, const double* rewards, const double* values, const double* next_values,
    const uint8_t* terminated, const uint8_t* truncated, const uint8_t* valid, double gamma, double decay,
    double* advantages, double* returns, double* moments) {
  returns_and_moments<double>(
      steps, envs, num_shards, rewards, values, next_values, terminated, truncated, valid, gamma, decay, advantages, returns,
      moments);
}

}  // extern "C"
