// PPO's loss of ddppo/ppo/losses.py, and its gradient by the network's outputs, derived by hand. Each SIMD lane
// computes one row (sample). ddppo/ppo/gradient_check.py compares the gradient with autograd's before a run.
#pragma once

#include "beta.hpp"
#include "mlp.hpp"

namespace ddppo {

enum ActionKind { kDiscrete, kMultiDiscrete, kMultiBinary, kBox, kBeta };  // kBox: Gaussian; kBeta: a box too

// policy_loss, value_loss, entropy, approx_kl, clip_fraction, ratio_outliers: STATISTICS in ddppo/ppo/losses.py.
constexpr int kNumStatistics = 6;

struct Coefficients {  // in the order of constants() in ddppo/ppo/learner.py
  double clip, value, entropy, clip_value, max_norm, adam_eps;
};

struct Actions {
  ActionKind kind;
  std::vector<long> sizes;  // categorical: choices of each component; multi-binary: number of bits; box: dimensions
  // Outputs of the policy's head. Log standard deviations of a box that are parameters beside the network
  // (model.log_std=parameter) do not count here; ActingBuffers::num_params in acting.hpp includes them.
  long num_params;
  // Of each dimension of a box within bounds, else empty: an action is shift + scale * y. With TanhGaussian of
  // ddppo/models/distributions.py, y is tanh(u), and they are middle and half width; nodes and weights are those of the
  // quadrature of its entropy. With Beta, y is in (0, 1), and they are low and width.
  std::vector<double> shifts, scales, nodes, weights;
};

// The samples of a rollout, [n, ...] each. Row r of a minibatch is sample order[r], or sample r if order is null.
template <class Real>
struct Batch {
  const Real* obs;
  const void* actions;  // int64, or Real of a box
  const Real *logprobs, *values, *advantages, *returns, *weights;
  const uint8_t* mask;  // [n, num_params], or null
  const int64_t* order;
};

// (exp(x) - 1) - x without cancellation; exp(x) is given.
inline Simd<double>::V exp_minus_line(Simd<double>::V x, Simd<double>::V) {
  return each<double>(x, [](double v) { return std::expm1(v) - v; });
}

inline Simd<float>::V exp_minus_line(Simd<float>::V x, Simd<float>::V exp_x) {
  using F = Simd<float>::V;
  const F p = polynomial(x, 1.0f / 40320, 1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f);
  const F size = x < F{} ? -x : x;
  return size < 0.5f ? x * x * p : (exp_x - 1.0f) - x;
}

// log(1 + x) for x in [0, 1]: the series of 2 atanh(x / (2 + x)), whose next term is below 1e-9 of the sum.
inline Simd<float>::V log1p_of(Simd<float>::V x) {
  const Simd<float>::V s = x / (x + 2.0f), square = s * s;
  return 2.0f * s * polynomial(
      square, 1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f);
}

inline Simd<double>::V log1p_of(Simd<double>::V x) {
  return each<double>(x, [](double v) { return std::log1p(v); });
}

template <class Real>
class PPOLoss {
  using S = Simd<Real>;
  static constexpr int kLanes = S::lanes;
  // Row r of a block is added to chain r % kChains. The number of chains is the same on every processor, so that sums
  // do not depend on the width of its vectors.
  static constexpr int kChains = 16, kVectors = kChains / kLanes;
  static constexpr Real kHalfLog2Pi = Real(0.91893853320467274178);

 public:
  PPOLoss(const Actions& actions, const Batch<Real>& batch, const Coefficients& c, double count, const Real* log_std)
      : actions_(actions), batch_(batch), c_(c), per_count_(Real(1.0 / count)), log_std_(log_std),
        params_(actions.num_params), slopes_(actions.num_params), odds_(actions.num_params),
        by_mean_(actions.nodes.empty() ? 0 : actions.sizes[0]), by_log_std_(by_mean_.size()) {
    if (actions.kind != kBox) return;
    for (long j = 0; j < dimensions(); j++) {
      log_stds_.push_back(log_std ? S::all(log_std[j]) : V<Real>{});
      odds_[j] = log_std ? S::all(std::exp(-log_std[j])) : V<Real>{};
      deviations_.push_back(log_std ? S::all(std::exp(log_std[j])) : V<Real>{});
    }
  }

  // Add the statistics of rows [first, first + rows) of the minibatch to `sums`, write the gradient by the network's
  // outputs, and return the loss, weighted and over count. Rows of params and dparams are params_width apart, those of
  // values and dvalues values_width.
  double block(
      long first, long rows, const Real* params, long params_width, const Real* values, long values_width,
      Real* dparams, Real* dvalues, Real* dlog_std, double* sums) {
    double loss = 0;
    V<Real> block_sums[kVectors][kNumStatistics + 1] = {};  // the loss comes last
    for (long r0 = 0; r0 < rows; r0 += kLanes) {
      // 1. Load kLanes rows. In a short last group, k < kLanes: the lanes behind repeat the last row with weight 0.
      const int k = static_cast<int>(std::min<long>(kLanes, rows - r0));
      for (int i = 0; i < kLanes; i++) {
        const long r = r0 + std::min(i, k - 1);
        source_[i] = batch_.order ? batch_.order[first + r] : first + r;
        for (long j = 0; j < actions_.num_params; j++) params_[j][i] = params[r * params_width + j];
      }
      V<Real> weight{}, value{};
      for (int i = 0; i < k; i++) {
        weight[i] = batch_.weights[source_[i]];
        value[i] = values[(r0 + i) * values_width];
      }
      const V<Real> logprobs = gathered(batch_.logprobs), advantages = gathered(batch_.advantages);
      // 2. Log-probabilities and entropy, with their slopes.
      V<Real> log_ratio{}, entropy{};
      evaluate(log_ratio, entropy);
      log_ratio -= logprobs;

      // 3. The clipped surrogate loss -min(r A, clip(r) A) (losses.py:clipped_surrogate_loss). Its slope by log pi is
      //    -r A, or 0 if the clipped term is the smaller one.
      const V<Real> ratio = exp_of(log_ratio);
      const Real low = Real(1 - c_.clip), high = Real(1 + c_.clip);
      V<Real> clipped = ratio < low ? S::all(low) : ratio;
      clipped = clipped > high ? S::all(high) : clipped;
      const V<Real> plain = ratio * advantages, bounded = clipped * advantages;
      const V<Real> is_bounded = bounded < plain ? S::all(1) : V<Real>{};
      const V<Real> policy_loss = bounded < plain ? -bounded : -plain;
      const V<Real> share = weight * per_count_;  // of a row in the mean over all ranks
      const V<Real> dlogp = -plain * (S::all(1) - is_bounded) * share;
      const V<Real> dentropy = Real(-c_.entropy) * share;
      // 4. The value loss, and the gradients by the outputs.
      const V<Real> value_loss = value_part(value, share, k, dvalues + r0 * values_width, values_width);
      descend(dlogp, dentropy, r0, k, dparams, params_width, dlog_std);

      // 5. Loss and statistics.
      V<Real>* chains = block_sums[r0 / kLanes % kVectors];
      chains[kNumStatistics] += (policy_loss + Real(c_.value) * value_loss - Real(c_.entropy) * entropy) * share;
      const V<Real> kl = exp_minus_line(log_ratio, ratio);
      const V<Real> off = kl + log_ratio, size = off < V<Real>{} ? -off : off;
      const V<Real> distance = log_ratio < V<Real>{} ? -log_ratio : log_ratio;
      chains[0] += weight * policy_loss;
      chains[1] += weight * value_loss;
      chains[2] += weight * entropy;
      chains[3] += weight * kl;
      chains[4] += size > Real(c_.clip) ? weight : V<Real>{};
      chains[5] += distance > Real(0.6931471805599453) ? weight : V<Real>{};
    }
    for (int r = 0; r < kChains; r++) {
      const V<Real>* chains = block_sums[r / kLanes];
      for (int s = 0; s < kNumStatistics; s++) sums[s] += chains[s][r % kLanes];
      loss += chains[kNumStatistics][r % kLanes];
    }
    return loss;
  }

 private:
  // The entries of a column for the rows in the lanes.
  V<Real> gathered(const Real* column) const {
    V<Real> x;
    for (int i = 0; i < kLanes; i++) x[i] = column[source_[i]];
    return x;
  }

  // Return the value loss of k rows, and write its gradient by the values.
  V<Real> value_part(V<Real> value, V<Real> share, int k, Real* dvalues, long width) const {
    const V<Real> returns = gathered(batch_.returns);
    V<Real> error = value - returns;
    V<Real> squared = error * error;
    if (std::isfinite(c_.clip_value)) {
      const V<Real> old = gathered(batch_.values), bound = S::all(Real(c_.clip_value));
      V<Real> moved = value - old;
      const V<Real> is_inside = ((moved >= -bound) & (moved <= bound)) ? S::all(1) : V<Real>{};
      moved = moved > bound ? bound : moved;
      moved = moved < -bound ? -bound : moved;
      const V<Real> clipped_error = old + moved - returns, clipped_squared = clipped_error * clipped_error;
      error = clipped_squared > squared ? clipped_error * is_inside : error;
      squared = clipped_squared > squared ? clipped_squared : squared;
    }
    const V<Real> slope = error * share * Real(c_.value);
    for (int i = 0; i < k; i++) dvalues[i * width] = slope[i];
    return Real(0.5) * squared;
  }

  // Add log pi(action) and the entropy of the rows in the lanes. slopes_ keeps d log pi / d param and odds_ keeps
  // d entropy / d param for `descend`; of a box they keep z and 1 / std.
  void evaluate(V<Real>& logp, V<Real>& entropy) {
    const auto* choices = static_cast<const int64_t*>(batch_.actions);
    const long num_components = static_cast<long>(actions_.sizes.size());
    switch (actions_.kind) {
      case kDiscrete:
      case kMultiDiscrete: {
        long offset = 0;
        for (long component = 0; component < num_components; component++) {
          for (int i = 0; i < kLanes; i++) chosen_[i] = choices[source_[i] * num_components + component];
          categorical(offset, actions_.sizes[component], logp, entropy);
          offset += actions_.sizes[component];
        }
        break;
      }
      case kMultiBinary:
        for (long j = 0; j < actions_.num_params; j++) {
          const V<Real> logit = params_[j], size = logit < V<Real>{} ? -logit : logit;
          const V<Real> small = exp_of(-size);  // no overflow
          const V<Real> softplus_of_minus_size = each<Real>(small, [](Real e) { return std::log1p(e); });
          const V<Real> odds = (logit < V<Real>{} ? small : S::all(1)) / (S::all(1) + small);
          V<Real> bit;
          for (int i = 0; i < kLanes; i++) bit[i] = Real(choices[source_[i] * actions_.num_params + j] > 0);
          const V<Real> softplus = (logit > V<Real>{} ? logit : V<Real>{}) + softplus_of_minus_size;
          logp += bit * logit - softplus;
          entropy += softplus - logit * odds;
          slopes_[j] = bit - odds;
          odds_[j] = -logit * odds * (S::all(1) - odds);
        }
        break;
      case kBox: {
        const auto* taken = static_cast<const Real*>(batch_.actions);
        for (long j = 0; j < dimensions(); j++) {
          V<Real> action;
          for (int i = 0; i < kLanes; i++) action[i] = taken[source_[i] * dimensions() + j];
          if (!log_std_) {
            log_stds_[j] = limited<Real>(params_[dimensions() + j]);
            odds_[j] = exp_of(-log_stds_[j]);
            deviations_[j] = exp_of(log_stds_[j]);
          }
          if (!by_mean_.empty()) action = before_tanh(j, action, logp, entropy);
          const V<Real> z = (action - params_[j]) * odds_[j];
          logp += Real(-0.5) * z * z - log_stds_[j] - kHalfLog2Pi;
          entropy += log_stds_[j] + Real(0.5) + kHalfLog2Pi;
          slopes_[j] = z;
        }
        break;
      }
      case kBeta:
        for (long j = 0; j < dimensions(); j++) of_beta(j, logp, entropy);
        break;
    }
  }

  // Dimension j of Beta-distributed actions, computed in double: float vectors are cut into parts.
  void of_beta(long j, V<Real>& logp, V<Real>& entropy) {
    constexpr int kPart = Simd<double>::lanes;
    const auto* taken = static_cast<const Real*>(batch_.actions);
    const long n = dimensions();
    const double low = actions_.shifts[j], width = actions_.scales[j];
    const Doubles log_width = log_by_series(Simd<double>::all(width));
    for (int first = 0; first < kLanes; first += kPart) {
      Doubles a, b, action;
      for (int i = 0; i < kPart; i++) {
        a[i] = params_[j][first + i], b[i] = params_[n + j][first + i];
        action[i] = taken[source_[first + i] * n + j];
      }
      const Beta::Terms t = Beta(a, b).terms(Beta::inside<Real>((action - low) / width));
      const Doubles logps = t.logp - log_width, entropies = t.entropy + log_width;
      const Doubles by_a = Beta::sigmoid(a), by_b = Beta::sigmoid(b);
      const Doubles logp_by_a = t.logp_by_p * by_a, logp_by_b = t.logp_by_q * by_b;
      const Doubles entropy_by_a = t.entropy_by_p * by_a, entropy_by_b = t.entropy_by_q * by_b;
      for (int i = 0; i < kPart; i++) {
        logp[first + i] += Real(logps[i]), entropy[first + i] += Real(entropies[i]);
        slopes_[j][first + i] = Real(logp_by_a[i]), slopes_[n + j][first + i] = Real(logp_by_b[i]);
        odds_[j][first + i] = Real(entropy_by_a[i]), odds_[n + j][first + i] = Real(entropy_by_b[i]);
      }
    }
  }

  // Return u = atanh((action - middle) / half) of dimension j. Subtract log(half (1 - tanh(u)^2)) from log pi, and add
  // its mean to the entropy; by_mean_ and by_log_std_ keep the slopes of this mean.
  V<Real> before_tanh(long j, V<Real> action, V<Real>& logp, V<Real>& entropy) {
    const Real middle = Real(actions_.shifts[j]), half = Real(actions_.scales[j]);
    const Real limit = 1 - std::numeric_limits<Real>::epsilon();
    V<Real> x = (action - middle) / half;
    x = x > limit ? S::all(limit) : x;
    x = x < -limit ? S::all(-limit) : x;
    const V<Real> above = each<Real>(x, [](Real v) { return std::log1p(v); });
    const V<Real> below = each<Real>(-x, [](Real v) { return std::log1p(v); });
    logp -= above + below + std::log(half);
    V<Real> mean{}, by_mean{}, by_log_std{};
    for (std::size_t i = 0; i < actions_.nodes.size(); i++) {
      const Real weight = Real(actions_.weights[i]);
      const V<Real> step = deviations_[j] * Real(actions_.nodes[i]);
      const V<Real> u = params_[j] + step, size = u < V<Real>{} ? -u : u;
      const V<Real> e = exp_of(Real(-2) * size);  // 1 - tanh(u)^2 = 4 e / (1 + e)^2
      mean += weight * Real(2) * (Real(0.69314718055994530942) - size - log1p_of(e));
      const V<Real> slope = Real(-2) * weight * (S::all(1) - e) / (S::all(1) + e);
      const V<Real> signed_slope = u < V<Real>{} ? -slope : slope;
      by_mean += signed_slope;
      by_log_std += signed_slope * step;
    }
    entropy += mean + std::log(half);
    by_mean_[j] = by_mean;
    by_log_std_[j] = by_log_std;
    return Real(0.5) * (above - below);
  }

  // One categorical component: the softmax over params_[offset, offset + n). Forbidden choices have probability 0 and
  // no gradient.
  void categorical(long offset, long n, V<Real>& logp, V<Real>& entropy) {
    V<Real>* logits = params_.data() + offset;
    if (batch_.mask)
      for_each_forbidden(offset, n, [this](long j, int i) { params_[j][i] = std::numeric_limits<Real>::lowest(); });
    V<Real> largest = logits[0];
    for (long j = 1; j < n; j++) largest = logits[j] > largest ? logits[j] : largest;
    V<Real> total{};
    for (long j = 0; j < n; j++) {
      odds_[offset + j] = exp_of(logits[j] - largest);
      total += odds_[offset + j];
    }
    const V<Real> log_total = each<Real>(total, [](Real x) { return std::log(x); });
    V<Real> taken{}, own_entropy{};
    for (long j = 0; j < n; j++) {
      const V<Real> log_odds = (logits[j] - largest) - log_total, odds = odds_[offset + j] / total;
      V<Real> is_chosen;
      for (int i = 0; i < kLanes; i++) is_chosen[i] = Real(chosen_[i] == j);
      taken = is_chosen > V<Real>{} ? log_odds : taken;
      own_entropy -= odds > V<Real>{} ? odds * log_odds : odds;
      slopes_[offset + j] = is_chosen - odds;
      odds_[offset + j] = odds;
      logits[j] = log_odds;
    }
    for (long j = 0; j < n; j++) {  // replace the probability by d entropy / d logit
      const V<Real> odds = odds_[offset + j];
      odds_[offset + j] = odds > V<Real>{} ? -odds * (logits[j] + own_entropy) : odds;
    }
    if (batch_.mask)  // also if no choice is allowed: the softmax is uniform then, and no logit gets a gradient
      for_each_forbidden(offset, n, [this](long j, int i) { slopes_[j][i] = odds_[j][i] = 0; });
    logp += taken;
    entropy += own_entropy;
  }

  template <class F>
  void for_each_forbidden(long offset, long n, F&& f) {
    for (long j = offset; j < offset + n; j++)
      for (int i = 0; i < kLanes; i++)
        if (!batch_.mask[source_[i] * actions_.num_params + j]) f(j, i);
  }

  long dimensions() const { return actions_.sizes[0]; }  // of a box

  // The chain rule: write the gradient by the policy's outputs, and add that by a log_std beside them.
  void descend(V<Real> dlogp, V<Real> dentropy, long r0, int k, Real* dparams, long width, Real* dlog_std) const {
    for (long j = 0; j < (actions_.kind == kBox ? dimensions() : actions_.num_params); j++) {
      V<Real> slope;
      if (actions_.kind == kBox) {
        const V<Real> z = slopes_[j];
        slope = dlogp * z * odds_[j];
        V<Real> of_log_std = dlogp * (z * z - Real(1)) + dentropy;
        if (!by_mean_.empty()) {
          slope += dentropy * by_mean_[j];
          of_log_std += dentropy * by_log_std_[j];
        }
        for (int i = 0; i < k; i++)
          if (log_std_)
            dlog_std[j] += of_log_std[i];
          else
            dparams[(r0 + i) * width + dimensions() + j] = of_log_std[i];
      } else {
        slope = dlogp * slopes_[j] + dentropy * odds_[j];
      }
      for (int i = 0; i < k; i++) dparams[(r0 + i) * width + j] = slope[i];
    }
  }

  const Actions& actions_;
  const Batch<Real>& batch_;
  const Coefficients c_;
  const Real per_count_;
  const Real* log_std_;  // [dimensions] beside the network, or null
  int64_t source_[kLanes], chosen_[kLanes];
  std::vector<V<Real>> params_, slopes_, odds_;  // [num_params], for the rows in the lanes
  std::vector<V<Real>> log_stds_, deviations_;   // of a box; `odds_` keeps 1 / deviation
  std::vector<V<Real>> by_mean_, by_log_std_;    // of a squashed box: slopes of the mean of log(half (1 - tanh(u)^2))
};

}  // namespace ddppo
