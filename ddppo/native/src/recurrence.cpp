// The recurrences of LSTM and GRU over T rows in time, and their gradients. The caller is ddppo/models/recurrent.py.
//
// m environments (`envs`), H units (`units`, a multiple of every vector). Only the part that must go row by row is
// here: `inputs` holds W_x x + b of all rows already, and the caller computes the gradients by weights as products over
// all rows. keeps [T, m] is the factor of the state before each row, 0 at the start of an episode. A gradient by x is
// named of_x. The structs below have the order in which recurrent.py passes the arrays.
//
//   LSTM  i, f, o = sigmoid(...), g = tanh(...);  c' = f c + i g;  h' = o tanh(c')
//   GRU   r, z = sigmoid(...), n = tanh(W_in x + b_in + r (W_hn h + b_hn));  h' = n + z (h - n)
#include <algorithm>
#include <vector>

#include "layers.hpp"

namespace ddppo {
namespace {

template <class Real>
inline V<Real> sigmoid(V<Real> x) {
  const V<Real> half = Simd<Real>::all(Real(0.5));
  return half * tanh_of(half * x) + half;
}

template <class Real>
struct Onto {  // out = begin + product
  const Real* begin;
  Real* out;
  long width;
  V<Real> start(long m, long n) const { return Simd<Real>::load(begin + m * width + n); }
  void end(long m, long n, V<Real> x) const { Simd<Real>::store(out + m * width + n, x); }
};

template <class Real>
struct Into {  // out = product
  Real* out;
  long width;
  V<Real> start(long, long) const { return V<Real>{}; }
  void end(long m, long n, V<Real> x) const { Simd<Real>::store(out + m * width + n, x); }
};

// out = x times the factor of each environment, [m, H].
template <class Real>
void times_each(const Real* keep, const Real* x, Real* out, long envs, long units) {
  for (long i = 0; i < envs; i++)
    for (long j = 0; j < units; j++) out[i * units + j] = x[i * units + j] * keep[i];
}

template <class Real>
struct LstmForward {
  const Real *inputs, *keeps, *h;  // h [m, H] before row 0
  Real* c;                         // [m, H] in: before row 0; out: after the last row
  const Real* weight;              // [H, 4H], W_h transposed
  Real* gates;                     // i, f, g, o [T, m, 4H]
  Real *h_before, *c_before, *tanh_c, *outputs;  // [T, m, H]
};

template <class Real>
void run(long steps, long envs, long units, const LstmForward<Real>& of) {
  const auto& [inputs, keeps, h, c, weight, gates, h_before, c_before, tanh_c, outputs] = of;
  const long state = envs * units, width = 4 * units;
  for (long t = 0; t < steps; t++) {
    times_each<Real>(keeps + t * envs, t ? outputs + (t - 1) * state : h, h_before + t * state, envs, units);
    times_each<Real>(keeps + t * envs, c, c_before + t * state, envs, units);
    Real* const row = gates + t * envs * width;
    product<Real>(
        {h_before + t * state, units, 1}, rows_of(weight, width), envs, width, units,
        Onto<Real>{inputs + t * envs * width, row, width});
    for (long i = 0; i < envs; i++)
      for (long j = 0; j < units; j += Simd<Real>::lanes) {
        using S = Simd<Real>;
        Real* const z = row + i * width + j;
        const long at = i * units + j, of_all = t * state + at;
        const V<Real> in = sigmoid<Real>(S::load(z)), forget = sigmoid<Real>(S::load(z + units));
        const V<Real> candidate = tanh_of(S::load(z + 2 * units)), out = sigmoid<Real>(S::load(z + 3 * units));
        const V<Real> after = forget * S::load(c_before + of_all) + in * candidate, tanh_now = tanh_of(after);
        S::store(z, in);
        S::store(z + units, forget);
        S::store(z + 2 * units, candidate);
        S::store(z + 3 * units, out);
        S::store(c + at, after);
        S::store(tanh_c + of_all, tanh_now);
        S::store(outputs + of_all, out * tanh_now);
      }
  }
}

template <class Real>
struct LstmBackward {
  const Real *of_outputs, *keeps;  // of_outputs [T, m, H]
  Real *dh, *dc;                   // [m, H] in: gradient by the state after the last row; out: by that before row 0
  const Real* weight;              // [4H, H], W_h
  const Real *gates, *c_before, *tanh_c;
  Real* of_gates;  // [T, m, 4H], by inputs + W_h h
};

template <class Real>
void run(long steps, long envs, long units, const LstmBackward<Real>& of) {
  const auto& [of_outputs, keeps, dh, dc, weight, gates, c_before, tanh_c, of_gates] = of;
  using S = Simd<Real>;
  const long state = envs * units, width = 4 * units;
  const V<Real> one = S::all(1);
  for (long t = steps - 1; t >= 0; t--) {
    Real* const row = of_gates + t * envs * width;
    for (long i = 0; i < envs; i++)
      for (long j = 0; j < units; j += S::lanes) {
        const Real* const z = gates + (t * envs + i) * width + j;
        Real* const dz = row + i * width + j;
        const long at = i * units + j, of_all = t * state + at;
        const V<Real> in = S::load(z), forget = S::load(z + units);
        const V<Real> candidate = S::load(z + 2 * units), out = S::load(z + 3 * units);
        const V<Real> tanh_now = S::load(tanh_c + of_all);
        const V<Real> of_h = S::load(dh + at) + S::load(of_outputs + of_all);
        const V<Real> of_c = S::load(dc + at) + of_h * out * (one - tanh_now * tanh_now);
        S::store(dz, of_c * candidate * in * (one - in));
        S::store(dz + units, of_c * S::load(c_before + of_all) * forget * (one - forget));
        S::store(dz + 2 * units, of_c * in * (one - candidate * candidate));
        S::store(dz + 3 * units, of_h * tanh_now * out * (one - out));
        S::store(dc + at, of_c * forget);
      }
    product<Real>({row, width, 1}, rows_of(weight, units), envs, units, width, Into<Real>{dh, units});
    times_each<Real>(keeps + t * envs, dh, dh, envs, units);
    times_each<Real>(keeps + t * envs, dc, dc, envs, units);
  }
}

template <class Real>
struct GruForward {
  const Real *inputs, *keeps, *h;       // h [m, H] before row 0
  const Real *weight, *bias;            // [H, 3H], W_h transposed; [3H], added to W_h h
  Real* gates;                          // r, z, and W_hn h + b_hn [T, m, 3H]
  Real *n, *h_before, *outputs;         // [T, m, H]
};

template <class Real>
void run(long steps, long envs, long units, const GruForward<Real>& of) {
  const auto& [inputs, keeps, h, weight, bias, gates, n, h_before, outputs] = of;
  const long state = envs * units, width = 3 * units;
  for (long t = 0; t < steps; t++) {
    times_each<Real>(keeps + t * envs, t ? outputs + (t - 1) * state : h, h_before + t * state, envs, units);
    Real* const row = gates + t * envs * width;
    product<Real>(
        {h_before + t * state, units, 1}, rows_of(weight, width), envs, width, units,
        Affine<Real>{bias, row, width});
    for (long i = 0; i < envs; i++)
      for (long j = 0; j < units; j += Simd<Real>::lanes) {
        using S = Simd<Real>;
        Real* const y = row + i * width + j;
        const Real* const x = inputs + (t * envs + i) * width + j;
        const long at = t * state + i * units + j;
        const V<Real> r = sigmoid<Real>(S::load(y) + S::load(x));
        const V<Real> z = sigmoid<Real>(S::load(y + units) + S::load(x + units));
        const V<Real> candidate = tanh_of(S::load(x + 2 * units) + r * S::load(y + 2 * units));
        S::store(y, r);
        S::store(y + units, z);
        S::store(n + at, candidate);
        S::store(outputs + at, candidate + z * (S::load(h_before + at) - candidate));
      }
  }
}

template <class Real>
struct GruBackward {
  const Real *of_outputs, *keeps;
  Real* dh;
  const Real* weight;  // [3H, H], W_h
  const Real *gates, *n, *h_before;
  Real *of_h, *of_inputs;  // [T, m, 3H], by W_h h + bias and by inputs
};

template <class Real>
void run(long steps, long envs, long units, const GruBackward<Real>& of) {
  const auto& [of_outputs, keeps, dh, weight, gates, n, h_before, of_h, of_inputs] = of;
  using S = Simd<Real>;
  const long state = envs * units, width = 3 * units;
  const V<Real> one = S::all(1);
  std::vector<Real> through(state);
  for (long t = steps - 1; t >= 0; t--) {
    Real* const row = of_h + t * envs * width;
    for (long i = 0; i < envs; i++)
      for (long j = 0; j < units; j += S::lanes) {
        const Real* const y = gates + (t * envs + i) * width + j;
        Real* const dy = row + i * width + j;
        Real* const dx = of_inputs + (t * envs + i) * width + j;
        const long at = i * units + j, of_all = t * state + at;
        const V<Real> r = S::load(y), z = S::load(y + units), candidate = S::load(n + of_all);
        const V<Real> d = S::load(dh + at) + S::load(of_outputs + of_all);
        const V<Real> of_n = d * (one - z) * (one - candidate * candidate);
        const V<Real> of_r = of_n * S::load(y + 2 * units) * r * (one - r);
        const V<Real> of_z = d * (S::load(h_before + of_all) - candidate) * z * (one - z);
        S::store(dy, of_r);
        S::store(dy + units, of_z);
        S::store(dy + 2 * units, of_n * r);
        S::store(dx, of_r);
        S::store(dx + units, of_z);
        S::store(dx + 2 * units, of_n);
        S::store(through.data() + at, d * z);
      }
    product<Real>(
        {row, width, 1}, rows_of(weight, units), envs, units, width, Onto<Real>{through.data(), dh, units});
    times_each<Real>(keeps + t * envs, dh, dh, envs, units);
  }
}

}  // namespace
}  // namespace ddppo

extern "C" {

void lstm_forward_float(int64_t steps, int64_t envs, int64_t units, const ddppo::LstmForward<float>* of) {
  ddppo::run(steps, envs, units, *of);
}

void lstm_forward_double(int64_t steps, int64_t envs, int64_t units, const ddppo::LstmForward<double>* of) {
  ddppo::run(steps, envs, units, *of);
}

void lstm_backward_float(int64_t steps, int64_t envs, int64_t units, const ddppo::LstmBackward<float>* of) {
  ddppo::run(steps, envs, units, *of);
}

void lstm_backward_double(int64_t steps, int64_t envs, int64_t units, const ddppo::LstmBackward<double>* of) {
  ddppo::run(steps, envs, units, *of);
}

void gru_forward_float(int64_t steps, int64_t envs, int64_t units, const ddppo::GruForward<float>* of) {
  ddppo::run(steps, envs, units, *of);
}

void gru_forward_double(int64_t steps, int64_t envs, int64_t units, const ddppo::GruForward<double>* of) {
  ddppo::run(steps, envs, units, *of);
}

void gru_backward_float(int64_t steps, int64_t envs, int64_t units, const ddppo::GruBackward<float>* of) {
  ddppo::run(steps, envs, units, *of);
}

void gru_backward_double(int64_t steps, int64_t envs, int64_t units, const ddppo::GruBackward<double>* of) {
  ddppo::run(steps, envs, units, *of);
}

}  // extern "C"
