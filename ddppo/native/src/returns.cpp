// Generalised advantage estimation as in ddppo/ppo/advantages.py, and this rank's moments of advantages and returns as
// in ddppo/ppo/normalization.py. Ranks merge their moments to normalise advantages alike.
#include <cmath>
#include <cstdint>

namespace {

// Write count, mean and sum of squared deviations of the valid numbers among x(0), ..., x(n - 1) to moments[0], [3],
// [6].
template <class F>
void write_moments(int64_t n, const uint8_t* valid, double* moments, F&& x) {
  double count = 0, sum = 0, squares = 0;
  for (int64_t i = 0; i < n; i++)
    if (valid[i]) {
      count += 1;
      sum += x(i);
    }
  const double mean = sum / (count > 1 ? count : 1);
  for (int64_t i = 0; i < n; i++)
    if (valid[i]) squares += (x(i) - mean) * (x(i) - mean);
  moments[0] = count;
  moments[3] = mean;
  moments[6] = squares;
}

template <class Real>
void returns_and_moments(
    int64_t steps, int64_t envs, const Real* rewards, const Real* values, const Real* next_values,
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
  // Columns of moments [3, 3]: advantages, returns, and returns - values.
  const int64_t n = steps * envs;
  write_moments(n, valid, moments, [&](int64_t i) { return double(advantages[i]); });
  write_moments(n, valid, moments + 1, [&](int64_t i) { return double(returns[i]); });
  write_moments(n, valid, moments + 2, [&](int64_t i) { return double(returns[i] - values[i]); });
}

}  // namespace

extern "C" {

void returns_float(
    int64_t steps, int64_t envs, const float* rewards, const float* values, const float* next_values,
    const uint8_t* terminated, const uint8_t* truncated, const uint8_t* valid, double gamma, double decay,
    float* advantages, float* returns, double* moments) {
  returns_and_moments<float>(
      steps, envs, rewards, values, next_values, terminated, truncated, valid, float(gamma), float(decay), advantages,
      returns, moments);
}

void returns_double(
    int64_t steps, int64_t envs, const double* rewards, const double* values, const double* next_values,
    const uint8_t* terminated, const uint8_t* truncated, const uint8_t* valid, double gamma, double decay,
    double* advantages, double* returns, double* moments) {
  returns_and_moments<double>(
      steps, envs, rewards, values, next_values, terminated, truncated, valid, gamma, decay, advantages, returns,
      moments);
}

}  // extern "C"
