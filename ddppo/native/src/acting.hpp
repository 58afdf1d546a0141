// Acting on one row of observations: action parameters by the network, then actions and their log-probabilities from
// given noise, as ddppo/models/distributions.py samples them. The result of an environment does not depend on the
// others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "beta.hpp"

namespace ddppo {

extern "C" void network_policy(void* network, const void* obs, int64_t n, void* params);  // learn.cpp

// Buffers of a collector, time-major. ActingBuffers of ddppo/ppo/cpp/network.py has the same fields in the same order.
// Real is float or double; P is num_params, K num_noise, M the sum of sizes.
struct ActingBuffers {
  void* network;  // made by network_create
  int64_t is_double;
  int64_t kind;  // of the actions, as in the enum below
  int64_t num_envs, obs_size;
  // P, all parameters of the distribution: for a Gaussian, means and log standard deviations. Actions::num_params in
  // losses.hpp counts only the outputs of the policy's head: for a Gaussian, perhaps only the means.
  int64_t num_params;
  int64_t num_noise;  // K, numbers of noise for an action: one for each component
  const int64_t* sizes;   // [K] number of choices of each categorical component
  // [2, K] shifts and scales of actions within bounds (`Actions` in losses.hpp), or null.
  const double* bounds;
  const double* noise;    // [T, E, K]
  void* obs;              // [T + 1, E, obs_size]
  const bool* mask;       // [T + 1, E, M], or null
  void* actions;          // [T, E, K]: Real of a box, else int64_t
  void *params, *logprobs;  // [T, E, P], [T, E]
};

template <class Real>
class Actor {
 public:
  enum { kDiscrete, kMultiDiscrete, kMultiBinary, kBox, kBeta };  // as in losses.hpp

  explicit Actor(const ActingBuffers& buffers) : b_(buffers), cumulative_(b_.num_params), allowed_(b_.num_params) {}

  // Write the actions, their parameters and log-probabilities of row t.
  void act(long t) {
    const long envs = b_.num_envs;
    Real* params = static_cast<Real*>(b_.params) + t * envs * b_.num_params;
    network_policy(b_.network, static_cast<const Real*>(b_.obs) + t * envs * b_.obs_size, envs, params);
    for (long at = t * envs; at < (t + 1) * envs; at++, params += b_.num_params)
      static_cast<Real*>(b_.logprobs)[at] = draw(at, params);
  }

 private:
  // Draw the action of sample `at` = t * E + i, and return its log-probability.
  Real draw(long at, const Real* params) {
    const double* noise = b_.noise + at * b_.num_noise;
    int64_t* choices = static_cast<int64_t*>(b_.actions) + at * b_.num_noise;
    switch (b_.kind) {
      case kBox: return draw_numbers(params, noise, static_cast<Real*>(b_.actions) + at * b_.num_noise);
      case kBeta: return draw_betas(params, noise, static_cast<Real*>(b_.actions) + at * b_.num_noise);
      case kMultiBinary: return draw_bits(params, noise, choices);
      default: return draw_choices(at, params, noise, choices);
    }
  }

  // Gaussian: action = mean + exp(log_std) * noise; squashed: middle + half * tanh of that.
  Real draw_numbers(const Real* means, const double* noise, Real* actions) const {
    const long n = b_.num_noise;
    const Real half_log_two_pi = Real(0.5 * std::log(2 * M_PI));
    Real logprob = 0;
    for (long k = 0; k < n; k++) {
      const Real log_std = means[n + k];
      Real number = actions[k] = means[k] + std::exp(log_std) * static_cast<Real>(noise[k]);
      if (b_.bounds) {
        const Real middle = Real(b_.bounds[k]), half = Real(b_.bounds[n + k]);
        actions[k] = middle + half * inside(std::tanh(number));
        const Real x = inside((actions[k] - middle) / half), above = std::log1p(x), below = std::log1p(-x);
        number = (above - below) / 2;
        logprob -= above + below + std::log(half);
      }
      const Real z = (number - means[k]) * std::exp(-log_std);
      logprob += Real(-0.5) * z * z - log_std - half_log_two_pi;
    }
    return logprob;
  }

  // On a bound, the number before tanh would be infinite: actions are kept one last bit inside.
  static Real inside(Real x) {
    const Real limit = 1 - std::numeric_limits<Real>::epsilon();
    return std::min(std::max(x, -limit), limit);
  }

  // Beta: action = low + width * x. A vector holds as many dimensions as it has lanes.
  Real draw_betas(const Real* outputs, const double* noise, Real* actions) const {
    constexpr int kLanes = Simd<double>::lanes;
    const long n = b_.num_noise;
    Real logprob = 0;
    for (long first = 0; first < n; first += kLanes) {
      const int num = static_cast<int>(std::min<long>(kLanes, n - first));
      Doubles a{}, b{}, lows{}, widths = Simd<double>::all(1.0);
      Words keys{};
      for (int i = 0; i < num; i++) {
        a[i] = outputs[first + i], b[i] = outputs[n + first + i];
        lows[i] = b_.bounds[first + i], widths[i] = b_.bounds[n + first + i];
        keys[i] = same_bits<uint32_t>(static_cast<float>(noise[first + i]));
      }
      const Beta beta(a, b);
      Doubles taken = lows + widths * Beta::inside<Real>(beta.draw(keys));
      for (int i = 0; i < num; i++) taken[i] = actions[first + i] = static_cast<Real>(taken[i]);
      const Doubles logprobs = beta.log_prob(Beta::inside<Real>((taken - lows) / widths)) - log_by_series(widths);
      for (int i = 0; i < num; i++) logprob += static_cast<Real>(logprobs[i]);
    }
    return logprob;
  }

  // Bernoulli, one for each bit: 1 with probability sigmoid(logit). log sigmoid(x) = min(x, 0) - log(1 + exp(-|x|)).
  Real draw_bits(const Real* logits, const double* noise, int64_t* actions) const {
    Real logprob = 0;
    for (long k = 0; k < b_.num_noise; k++) {
      actions[k] = static_cast<Real>(noise[k]) < 1 / (1 + std::exp(-logits[k]));
      const Real x = actions[k] ? logits[k] : -logits[k];
      logprob += std::min(x, Real(0)) - std::log1p(std::exp(-std::abs(x)));
    }
    return logprob;
  }

  // Categorical, one or several components. Forbidden choices get the lowest logit, and so probability 0.
  Real draw_choices(long at, const Real* logits, const double* noise, int64_t* actions) {
    if (b_.mask) {
      const bool* mask = b_.mask + at * b_.num_params;
      for (long k = 0; k < b_.num_params; k++)
        allowed_[k] = mask[k] ? logits[k] : std::numeric_limits<Real>::lowest();
      logits = allowed_.data();
    }
    Real logprob = 0;
    for (long c = 0; c < b_.num_noise; c++) {
      logprob += draw_choice(logits, b_.sizes[c], static_cast<Real>(noise[c]), actions + c);
      logits += b_.sizes[c];
    }
    return logprob;
  }

  // Draw one of n choices by inverting the cumulative distribution at `noise`. Noise is kept below 1, so that rounding
  // never gives a choice past the last one.
  Real draw_choice(const Real* logits, long n, Real noise, int64_t* action) {
    const Real below_one = 1 - std::numeric_limits<Real>::epsilon();
    const Real largest = *std::max_element(logits, logits + n);
    Real sum = 0;
    for (long k = 0; k < n; k++) cumulative_[k] = sum += std::exp(logits[k] - largest);
    const Real threshold = std::min(noise, below_one) * sum;
    int64_t choice = 0;
    for (long k = 0; k < n; k++) choice += cumulative_[k] <= threshold;
    *action = choice;
    return logits[choice] - largest - std::log(sum);
  }

  const ActingBuffers& b_;
  std::vector<Real> cumulative_, allowed_;
};

}  // namespace ddppo
