// Beta distributions of a box's actions (ddppo/models/beta.py): log-probabilities, entropies, their
// slopes, and draws.
//
// All of it is computed in double, also for float networks, because the logarithms of gamma functions of large
// parameters nearly cancel. Every function is made of fused multiply-adds, divisions and roots alone, never of the C
// library's, so its bits depend neither on the compiler nor on the width of a vector, and a lane does not depend on
// the others.
#pragma once

#include <limits>

#include "activations.hpp"

namespace ddppo {

using Doubles = Simd<double>::V;
typedef int64_t Bits __attribute__((vector_size(kVectorBytes)));
typedef uint64_t Words __attribute__((vector_size(kVectorBytes)));

template <class To, class From>
inline To same_bits(From x) {
  To to;
  static_assert(sizeof to == sizeof x);
  std::memcpy(&to, &x, sizeof to);
  return to;
}

// A polynomial by Horner's scheme; the coefficient of the highest power comes first.
template <class... Rest>
inline Doubles polynomial(Doubles x, double first, Rest... rest) {
  Doubles sum = Simd<double>::all(first);
  ((sum = fma(sum, x, Simd<double>::all(rest))), ...);
  return sum;
}

// log(x) of a positive normal number: x = 2^k m with m in [sqrt(1/2), sqrt(2)), and log(m) = 2 atanh((m - 1) / (m + 1)).
inline Doubles log_by_series(Doubles x) {
  const Bits root = Bits{} + 0x3fe6a09e667f3bcd;  // of sqrt(1/2)
  const Bits k = (same_bits<Bits>(x) - root) >> 52;
  const Doubles m = same_bits<Doubles>(same_bits<Bits>(x) - (k << 52)), n = __builtin_convertvector(k, Doubles);
  const Doubles s = (m - 1.0) / (m + 1.0), square = s * s;
  const Doubles rest = square * polynomial(
      square, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3);
  const Doubles log_m = fma(s, rest, s + s);
  // ln(2) in two parts; n times the first is exact.
  return fma(n, Simd<double>::all(0.693147180369123816490), fma(n, Simd<double>::all(1.90821492927058770002e-10), log_m));
}

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2 and Taylor's series to r^13; x is limited to [-700, 700].
inline Doubles exp_by_series(Doubles x) {
  const Doubles bound = Simd<double>::all(700.0);
  x = x > bound ? bound : x;
  x = x < -bound ? -bound : x;
  const Doubles magic = Simd<double>::all(6755399441055744.0);  // 1.5 * 2^52: adding it rounds to an integer
  const Doubles shifted = fma(x, Simd<double>::all(1.44269504088896340736), magic), n = shifted - magic;
  const Doubles rough = fma(n, Simd<double>::all(-0.693147180369123816490), x);
  const Doubles r = fma(n, Simd<double>::all(-1.90821492927058770002e-10), rough);
  const Doubles p = polynomial(
      r, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0);
  const Bits exponent = same_bits<Bits>(shifted) - same_bits<Bits>(magic);
  return p * same_bits<Doubles>((exponent + 1023) << 52);
}

// log(1 + e) for e in [0, 1]; the quotient corrects what 1 + e loses of a small e.
inline Doubles log1p_by_series(Doubles e) {
  const Doubles sum = e + 1.0, lost = sum - 1.0;
  return lost > 0.0 ? log_by_series(sum) * (e / lost) : e;
}

// The logarithm of the gamma function and its first two derivatives, for x >= 1.
struct Gamma {
  Doubles log, digamma, trigamma;

  // Stirling's series at x >= 9 (Abramowitz and Stegun, "Handbook of mathematical functions", 6.1.41, 6.3.18, 6.4.12).
  // Below 9 it is that of x + 8, from which the recurrence leads back: Gamma(x + 1) = x Gamma(x).
  explicit Gamma(Doubles x) {
    const Doubles one = Simd<double>::all(1.0);
    Doubles product = one, sum{}, squares{};
    for (int i = 0; i < 8; i++) {
      const Doubles factor = x + double(i), inverse = one / factor;
      product *= factor;
      sum += inverse;
      squares = fma(inverse, inverse, squares);
    }
    const auto is_small = x < 9.0;
    const Doubles y = is_small ? x + 8.0 : x, r = one / y, square = r * r, log_y = log_by_series(y);
    const Doubles of_log = r * polynomial(
        square, 1.0 / 156, -691.0 / 360360, 1.0 / 1188, -1.0 / 1680, 1.0 / 1260, -1.0 / 360, 1.0 / 12);
    const Doubles of_digamma = square * polynomial(
        square, 1.0 / 12, -691.0 / 32760, 1.0 / 132, -1.0 / 240, 1.0 / 252, -1.0 / 120, 1.0 / 12);
    const Doubles of_trigamma = square * r * polynomial(
        square, 7.0 / 6, -691.0 / 2730, 5.0 / 66, -1.0 / 30, 1.0 / 42, -1.0 / 30, 1.0 / 6);
    const Doubles none{};
    log = fma(y - 0.5, log_y, -y) + (of_log + 0.91893853320467274178) -
          log_by_series(is_small ? product : one);
    digamma = (log_y - 0.5 * r) - of_digamma - (is_small ? sum : none);
    trigamma = fma(Simd<double>::all(0.5), square, r) + of_trigamma + (is_small ? squares : none);
  }
};

// Beta(1 + p, 1 + q) with p = softplus(a) and q = softplus(b), for outputs a and b of the policy. Its x in (0, 1) is the
// action shift + scale x.
struct Beta {
  Doubles p, q;

  Beta(Doubles a, Doubles b) : p(softplus(a)), q(softplus(b)) {}

  static Doubles softplus(Doubles x) {
    const Doubles zero{}, size = x < zero ? -x : x;
    return (x > zero ? x : zero) + log1p_by_series(exp_by_series(-size));
  }

  // d softplus / dx
  static Doubles sigmoid(Doubles x) {
    const Doubles one = Simd<double>::all(1.0), zero{}, e = exp_by_series(x < zero ? x : -x);
    return (x < zero ? e : one) / (one + e);
  }

  // x kept one last bit of the network's type inside (0, 1).
  template <class Real>
  static Doubles inside(Doubles x) {
    const double eps = std::numeric_limits<Real>::epsilon();
    const Doubles low = Simd<double>::all(eps), high = Simd<double>::all(1 - eps);
    x = x < low ? low : x;
    return x > high ? high : x;
  }

  // The log-density of x, to which -log(scale) has to be added for that of the action.
  Doubles log_prob(Doubles x) const {
    const Doubles one = Simd<double>::all(1.0);
    return fma(p, log_by_series(x), q * log_by_series(one - x)) - log_beta(Gamma(p + 1.0), Gamma(q + 1.0), Gamma(p + q + 2.0));
  }

  static Doubles log_beta(const Gamma& alpha, const Gamma& beta, const Gamma& both) {
    return alpha.log + beta.log - both.log;
  }

  struct Terms {
    Doubles logp, entropy;                         // without log(scale)
    Doubles logp_by_p, logp_by_q, entropy_by_p, entropy_by_q;
  };

  Terms terms(Doubles x) const {
    const Gamma alpha(p + 1.0), beta(q + 1.0), both(p + q + 2.0);
    const Doubles log_x = log_by_series(x), log_rest = log_by_series(Simd<double>::all(1.0) - x);
    const Doubles normaliser = log_beta(alpha, beta, both), sum = p + q;
    Terms t;
    t.logp = fma(p, log_x, q * log_rest) - normaliser;
    t.entropy = normaliser - fma(p, alpha.digamma, q * beta.digamma) + sum * both.digamma;
    t.logp_by_p = log_x - alpha.digamma + both.digamma;
    t.logp_by_q = log_rest - beta.digamma + both.digamma;
    t.entropy_by_p = sum * both.trigamma - p * alpha.trigamma;
    t.entropy_by_q = sum * both.trigamma - q * beta.trigamma;
    return t;
  }

  // Draw x by Cheng's algorithm BB (1978, "Generating beta variates with nonintegral shape parameters", doi:
  // 10.1145/359460.359482) from the stream of random numbers with key `key`, one for each lane. A try is accepted with a
  // probability above .68, so the last of kTries is needed once in 10^15 draws.
  static constexpr int kTries = 32;  // NUM_TRIES in ddppo/models/beta.py

  Doubles draw(Words key) const {
    const Doubles one = Simd<double>::all(1.0), tiny = Simd<double>::all(2.2250738585072014e-308);
    const auto is_swapped = q < p;
    const Doubles small = is_swapped ? q : p, large = is_swapped ? p : q, sum = small + large;
    const Doubles a = small + 1.0, b = large + 1.0, total = a + b;
    Doubles slope = (sum + tiny) / (sum + 2.0 * small * large + tiny);
    for (int i = 0; i < Simd<double>::lanes; i++) slope[i] = std::sqrt(slope[i]);
    const Doubles gamma = a + one / slope;
    Doubles odds = one;
    Bits is_done{};
    for (int i = 0; i < kTries; i++) {
      const Doubles u = uniform(key, 2 * i), log_u = log_by_series(u);
      const Doubles v = slope * (log_u - log_by_series(one - u)), w = a * exp_by_series(v);
      const Doubles log_z = fma(Simd<double>::all(2.0), log_u, log_by_series(uniform(key, 2 * i + 1)));
      const Doubles margin = fma(gamma, v, Simd<double>::all(-1.3862943611198906188)) +
                             total * log_by_series(total / (b + w)) - log_z;
      odds = is_done ? odds : w / b;
      is_done = is_done | same_bits<Bits>(margin >= 0.0);
      bool are_all = true;
      for (int lane = 0; lane < Simd<double>::lanes; lane++) are_all &= is_done[lane] != 0;
      if (are_all) break;
    }
    const Doubles share = odds / (one + odds), rest = one / (one + odds);
    return is_swapped ? rest : share;
  }

  // Number `place` of a stream in (0, 1), as ddppo/device_random.py:stream and uniform make it, by SplitMix64.
  static Doubles uniform(Words key, uint64_t place) {
    constexpr uint64_t gamma = 0x9E3779B97F4A7C15, first = 0xBF58476D1CE4E5B9, second = 0x94D049BB133111EB;
    Words x = key + (place + 1) * gamma;
    x = (x ^ (x >> 30)) * first;
    x = (x ^ (x >> 27)) * second;
    x = x ^ (x >> 31);
    const Doubles u = __builtin_convertvector(x >> 11, Doubles) * 0x1p-53, least = Simd<double>::all(0x1p-54);
    return u > least ? u : least;
  }
};

}  // namespace ddppo
