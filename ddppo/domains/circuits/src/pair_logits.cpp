// Logits of pairs as sums of weights, and their gradient, for ddppo/domains/circuits/pairs.py.
#include <algorithm>
#include <cstdint>

namespace {

// Convert to a place in the table; numbers outside of it, which only the check of a model feeds, become 0.
template <class Real>
inline int64_t place(Real x, int64_t num_weights) {
  return x >= 0 && x < Real(num_weights) ? int64_t(x) : 0;
}

template <class Real>
inline int64_t count(Real x, int64_t most) {
  return x >= Real(most) ? most : x > 0 ? int64_t(x) : 0;
}

// logits[i, k] = sum over f of weights[features[i, k, f]] for the first num_pairs[i] pairs of row i; 0 behind them.
template <class Real>
void logits_of(int64_t n, int64_t most, int64_t num_features, int64_t num_weights, const Real* features,
               const Real* num_pairs, const Real* weights, Real* logits) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t real = count(num_pairs[i], most);
    const Real* at = features + i * most * num_features;
    Real* out = logits + i * most;
    for (int64_t k = 0; k < real; k++) {
      Real sum = 0;
      for (int64_t f = 0; f < num_features; f++) sum += weights[place(*at++, num_weights)];
      out[k] = sum;
    }
    std::fill(out + real, out + most, Real(0));
  }
}

// gradient[features[i, k, f]] += of_logits[i, k].
template <class Real>
void backward_of(int64_t n, int64_t most, int64_t num_features, int64_t num_weights, const Real* features,
                 const Real* num_pairs, const Real* of_logits, Real* gradient) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t real = count(num_pairs[i], most);
    const Real* at = features + i * most * num_features;
    for (int64_t k = 0; k < real; k++)
      for (int64_t f = 0; f < num_features; f++) gradient[place(*at++, num_weights)] += of_logits[i * most + k];
  }
}

}  // namespace

extern "C" {

#define DEFINE(Real, suffix)                                                                                   \
  void pair_logits_##suffix(int64_t n, int64_t most, int64_t f, int64_t v, const Real* features,               \
                            const Real* num_pairs, const Real* weights, Real* logits) {                        \
    logits_of(n, most, f, v, features, num_pairs, weights, logits);                                            \
  }                                                                                                            \
  void pair_logits_backward_##suffix(int64_t n, int64_t most, int64_t f, int64_t v, const Real* features,      \
                                     const Real* num_pairs, const Real* of_logits, Real* gradient) {           \
    backward_of(n, most, f, v, features, num_pairs, of_logits, gradient);                                      \
  }

DEFINE(float, float)
DEFINE(double, double)

}  // extern "C"
