// Gymnasium's classic-control tasks, with the same bits as in ddppo/envs/backends/classic.py, which names the sources
// of the formulas. So every formula has the same order and types here, no multiplication is fused with an addition
// (-ffp-contract=off), and functions are those of libm, as in NumPy.
#include "tasks.hpp"

#include <cmath>

namespace ddppo {
namespace {

constexpr double kPi = M_PI;

// x**2 of a NumPy scalar is libm's pow; a constant exponent would be compiled to x * x.
volatile double two = 2.0;
double squared(double x) { return std::pow(x, static_cast<double>(two)); }
float squared(float x) { return std::pow(x, static_cast<float>(two)); }

template <class Real>
Real clipped(Real x, Real low, Real high) {  // NaN stays
  return x < low ? low : x > high ? high : x;
}

// O'Neill 2014, PCG XSL-RR 128/64.
uint64_t next(Generator& generator) {
  using Wide = unsigned __int128;
  const Wide multiplier = (Wide(0x2360ED051FC65DA4) << 64) | 0x4385DF649FCCF645;
  const Wide increment = (Wide(generator.increment_high) << 64) | generator.increment_low;
  const Wide state = ((Wide(generator.state_high) << 64) | generator.state_low) * multiplier + increment;
  generator.state_high = state >> 64;
  generator.state_low = state;
  const uint64_t folded = generator.state_high ^ generator.state_low;
  const int turn = generator.state_high >> 58;
  return (folded >> turn) | (folded << (-turn & 63));
}

double uniform(Generator& generator, double low, double high) {
  const double unit = (next(generator) >> 11) * (1.0 / 9007199254740992.0);
  return low + (high - low) * unit;
}

// NumPy's float32 cosine and sine for |x| <= pi / 4 (numpy/_core/src/umath/loops_trigonometric.dispatch).
float numpy_cos(float x) {
  const float square = x * x;
  float sum = std::fma(0x1.98e616p-16f, square, -0x1.6c06dcp-10f);
  sum = std::fma(sum, square, 0x1.55553cp-05f);
  sum = std::fma(sum, square, -0x1.000000p-01f);
  return std::fma(sum, square, 1.0f);
}

float numpy_sin(float x) {
  const float square = x * x;
  float sum = std::fma(0x1.7d3bbcp-19f, square, -0x1.a06bbap-13f);
  sum = std::fma(sum, square, 0x1.11119ap-07f);
  sum = std::fma(sum, square, -0x1.555556p-03f);
  return std::fma(sum * square, x, x);
}

int64_t choice(const TaskBatch& b, long i) { return static_cast<const int64_t*>(b.actions)[i]; }
float force_of(const TaskBatch& b, long i) { return static_cast<const float*>(b.actions)[i]; }

struct CartPole {
  static constexpr int kObs = 4, kActions = 2;

  static void reset(TaskBatch& b, long i, float* obs) {
    const long n = b.num_envs;
    double drawn[4];
    for (double& value : drawn) value = uniform(b.generators[i], -0.05, 0.05);
    b.state[i] = drawn[0], b.state[n + i] = drawn[2], b.state[2 * n + i] = drawn[1], b.state[3 * n + i] = drawn[3];
    for (int k = 0; k < 4; k++) obs[k] = drawn[k];
  }

  static bool step(TaskBatch& b, long i, float* obs) {
    const long n = b.num_envs;
    double &x = b.state[i], &theta = b.state[n + i], &x_dot = b.state[2 * n + i], &theta_dot = b.state[3 * n + i];
    const double force = choice(b, i) ? 10.0 : -10.0, total_mass = 0.1 + 1.0, polemass_length = 0.1 * 0.5;
    const double sine = std::sin(theta), cosine = std::cos(theta);
    const double temp = (force + polemass_length * (theta_dot * theta_dot) * sine) / total_mass;
    const double theta_acceleration =
        (9.8 * sine - cosine * temp) / (0.5 * (4.0 / 3.0 - 0.1 * (cosine * cosine) / total_mass));
    const double x_acceleration = temp - polemass_length * theta_acceleration * cosine / total_mass;
    x += 0.02 * x_dot;
    theta += 0.02 * theta_dot;
    x_dot += 0.02 * x_acceleration;
    theta_dot += 0.02 * theta_acceleration;
    obs[0] = x, obs[1] = x_dot, obs[2] = theta, obs[3] = theta_dot;
    const bool terminated = std::fabs(x) > 2.4 || std::fabs(theta) > 12 * 2 * kPi / 360;
    b.rewards[i] = b.setting == 0.0 ? 1.0 : terminated ? -1.0 : 0.0;
    return terminated;
  }
};

struct Acrobot {
  static constexpr int kObs = 6, kActions = 3;

  static void reset(TaskBatch& b, long i, float* obs) {
    float drawn[4];
    for (int k = 0; k < 4; k++) {
      drawn[k] = uniform(b.generators[i], -0.1, 0.1);
      b.state[k * b.num_envs + i] = drawn[k];
    }
    for (int k = 0; k < 2; k++) obs[2 * k] = numpy_cos(drawn[k]), obs[2 * k + 1] = numpy_sin(drawn[k]);
    obs[4] = drawn[2], obs[5] = drawn[3];
  }

  static void derivative(const double* state, double torque, double* out) {
    const double m1 = 1.0, m2 = 1.0, l1 = 1.0, i1 = 1.0, i2 = 1.0, lc1 = 0.5, lc2 = 0.5, g = 9.8;
    const double theta1 = state[0], theta2 = state[1], dtheta1 = state[2], dtheta2 = state[3];
    const double cos2 = std::cos(theta2), sin2 = std::sin(theta2);
    const double d1 = m1 * (lc1 * lc1) + m2 * (l1 * l1 + lc2 * lc2 + 2 * l1 * lc2 * cos2) + i1 + i2;
    const double d2 = m2 * (lc2 * lc2 + l1 * lc2 * cos2) + i2;
    const double phi2 = m2 * lc2 * g * std::cos(theta1 + theta2 - kPi / 2.0);
    const double phi1 = -m2 * l1 * lc2 * squared(dtheta2) * sin2 - 2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin2 +
                        (m1 * lc1 + m2 * l1) * g * std::cos(theta1 - kPi / 2) + phi2;
    const double ddtheta2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * squared(dtheta1) * sin2 - phi2) /
                            (m2 * (lc2 * lc2) + i2 - squared(d2) / d1);
    out[0] = dtheta1, out[1] = dtheta2, out[2] = -(d2 * ddtheta2 + phi1) / d1, out[3] = ddtheta2;
  }

  static bool step(TaskBatch& b, long i, float* obs) {
    const long n = b.num_envs;
    const double torque = choice(b, i) - 1.0, dt = 0.2, weights[3] = {dt / 2.0, dt / 2.0, dt};
    double state[4], moved[4], k[4][4];
    for (int j = 0; j < 4; j++) moved[j] = state[j] = b.state[j * n + i];
    derivative(state, torque, k[0]);
    for (int stage = 1; stage < 4; stage++) {
      for (int j = 0; j < 4; j++) moved[j] = state[j] + weights[stage - 1] * k[stage - 1][j];
      derivative(moved, torque, k[stage]);
    }
    for (int j = 0; j < 4; j++) state[j] += dt / 6.0 * (k[0][j] + 2 * k[1][j] + 2 * k[2][j] + k[3][j]);
    for (int j = 0; j < 2; j++) {
      while (state[j] > kPi) state[j] -= 2 * kPi;
      while (state[j] < -kPi) state[j] += 2 * kPi;
    }
    state[2] = clipped(state[2], -4 * kPi, 4 * kPi);
    state[3] = clipped(state[3], -9 * kPi, 9 * kPi);
    for (int j = 0; j < 4; j++) b.state[j * n + i] = state[j];
    const double cosine = std::cos(state[0]);
    obs[0] = cosine, obs[1] = std::sin(state[0]), obs[2] = std::cos(state[1]), obs[3] = std::sin(state[1]);
    obs[4] = state[2], obs[5] = state[3];
    const bool terminated = -cosine - std::cos(state[1] + state[0]) > 1.0;
    b.rewards[i] = terminated ? 0.0 : -1.0;
    return terminated;
  }
};

struct Pendulum {
  static constexpr int kObs = 3, kActions = 0;
  static constexpr float kBound = 2.0f;

  static void reset(TaskBatch& b, long i, float* obs) {
    const double theta = b.state[i] = uniform(b.generators[i], -kPi, kPi);
    const double speed = b.state[b.num_envs + i] = uniform(b.generators[i], -1.0, 1.0);
    obs[0] = std::cos(theta), obs[1] = std::sin(theta), obs[2] = speed;
  }

  static bool step(TaskBatch& b, long i, float* obs) {
    double &theta = b.state[i], &speed = b.state[b.num_envs + i];
    const float torque = clipped(force_of(b, i), -kBound, kBound);  // terms of the torque alone are float32
    double angle = std::fmod(theta + kPi, 2 * kPi);              // Python's % has the sign of the divisor
    if (angle < 0) angle += 2 * kPi;
    angle -= kPi;
    const double costs = squared(angle) + 0.1 * squared(speed) + 0.001f * squared(torque);
    speed += (3 * b.setting / (2 * 1.0) * std::sin(theta) + 3.0f * torque) * 0.05;
    speed = clipped(speed, -8.0, 8.0);
    theta += speed * 0.05;
    obs[0] = std::cos(theta), obs[1] = std::sin(theta), obs[2] = speed;
    b.rewards[i] = -costs;
    return false;
  }
};

struct MountainCar {
  static constexpr int kObs = 2, kActions = 3;

  static void reset(TaskBatch& b, long i, float* obs) {
    obs[0] = b.state[i] = uniform(b.generators[i], -0.6, -0.4);
    obs[1] = b.state[b.num_envs + i] = 0.0;
  }

  static bool step(TaskBatch& b, long i, float* obs) {
    double &position = b.state[i], &velocity = b.state[b.num_envs + i];
    velocity += (choice(b, i) - 1) * 0.001 + std::cos(3 * position) * -0.0025;
    velocity = clipped(velocity, -0.07, 0.07);
    position = clipped(position + velocity, -1.2, 0.6);
    if (position == -1.2 && velocity < 0) velocity = 0;
    obs[0] = position, obs[1] = velocity;
    b.rewards[i] = -1.0;
    return position >= 0.5 && velocity >= b.setting;
  }
};

struct ContinuousMountainCar {
  static constexpr int kObs = 2, kActions = 0;
  static constexpr float kBound = 1.0f;

  static void reset(TaskBatch& b, long i, float* obs) {
    obs[0] = b.state[i] = uniform(b.generators[i], -0.6, -0.4);
    obs[1] = b.state[b.num_envs + i] = 0.0;
    // Just reset: Gymnasium computes the first step in float64, and all later ones in float32.
    b.state[2 * b.num_envs + i] = 1.0;
  }

  static bool step(TaskBatch& b, long i, float* obs) {
    const long n = b.num_envs;
    const float force = clipped(force_of(b, i), -kBound, kBound);
    const bool reached =
        b.state[2 * n + i] != 0.0 ? move<double>(b, i, force, obs) : move<float>(b, i, force, obs);
    b.state[i] = obs[0], b.state[n + i] = obs[1], b.state[2 * n + i] = 0.0;
    b.rewards[i] = (reached ? 100.0 : 0.0) - static_cast<double>(force) * force * 0.1;
    return reached;
  }

  template <class Real>
  static bool move(TaskBatch& b, long i, float force, float* obs) {
    Real position = b.state[i], velocity = b.state[b.num_envs + i];
    const double slope = 0.0025 * std::cos(static_cast<double>(3 * position));
    velocity = clipped(velocity + (force * 0.0015f - static_cast<float>(slope)), Real(-0.07), Real(0.07));
    position = clipped(position + velocity, Real(-1.2), Real(0.6));
    if (position == Real(-1.2) && velocity < 0) velocity = 0;
    obs[0] = position, obs[1] = velocity;
    return position >= Real(0.45) && velocity >= static_cast<Real>(b.setting);
  }
};

// See tasks_step in tasks.hpp. All actions are checked before any environment steps.
template <class Task>
int64_t step_all(TaskBatch& b) {
  if constexpr (Task::kActions > 0) {
    for (long i = 0; i < b.num_envs; i++)
      if (choice(b, i) < 0 || choice(b, i) >= Task::kActions) return -1 - i;
  }
  int64_t num_ended = 0;
  for (long i = 0; i < b.num_envs; i++) {
    float* obs = static_cast<float*>(b.obs) + i * Task::kObs;
    b.terminated[i] = Task::step(b, i, obs);
    b.truncated[i] = b.last_steps[i] <= b.num_steps;
    if (b.terminated[i] || b.truncated[i]) {
      float* final_obs = static_cast<float*>(b.final_obs) + num_ended * Task::kObs;
      for (int k = 0; k < Task::kObs; k++) final_obs[k] = obs[k];
      b.ended[num_ended++] = i;
      Task::reset(b, i, obs);
      b.last_steps[i] = b.num_steps + b.max_episode_steps;
    }
  }
  return num_ended;
}

template <class Task>
void reset_one(TaskBatch& b, int64_t i) {
  Task::reset(b, i, static_cast<float*>(b.obs) + i * Task::kObs);
  b.last_steps[i] = b.num_steps + b.max_episode_steps;
}

struct Row {  // the functions of a task
  void (*reset)(TaskBatch&, int64_t);
  int64_t (*step)(TaskBatch&);
};

template <class Task>
constexpr Row row() {
  return {reset_one<Task>, step_all<Task>};
}

// In the order of TASKS in envs/backends/classic_cpp.py.
constexpr Row kTasks[] = {
    row<CartPole>(), row<Acrobot>(), row<Pendulum>(), row<MountainCar>(), row<ContinuousMountainCar>()};

}  // namespace

extern "C" void tasks_reset(TaskBatch* batch, int64_t i) { kTasks[batch->task].reset(*batch, i); }

extern "C" int64_t tasks_step(TaskBatch* batch) { return kTasks[batch->task].step(*batch); }

}  // namespace ddppo
