// Gymnasium's MuJoCo tasks (-v5) for a batch of environments, with the bits of their Python: formulas keep Gymnasium's
// order and types, and sums are added in NumPy's order. The simulation is that of MuJoCo's own library, and random
// numbers are drawn by NumPy's functions from NumPy's generators. Python gives all of these as addresses, so nothing
// is linked. Compiled with the headers of the installed mujoco (mujoco_batched.py).
#include <mujoco/mjdata.h>
#include <mujoco/mjmodel.h>
#include <mujoco/mjxmacro.h>

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <thread>
#include <vector>

#include "tasks.hpp"

namespace ddppo {

class Team;

// E environments. MujocoBatch of mujoco_batched.py has the same fields in the same order.
struct MujocoBatch : TaskBatch {
  Team* team;  // threads that step environments beside the caller, or null
  const mjModel* model;
  mjData* const* data;       // [E]
  void* const* bit_generators;  // [E] bitgen_t of NumPy
  void (*mj_step)(const mjModel*, mjData*);
  void (*mj_rne_post_constraint)(const mjModel*, mjData*);
  void (*mj_reset_data)(const mjModel*, mjData*);
  void (*mj_forward)(const mjModel*, mjData*);
  double (*random_uniform)(void*, double low, double range);
  double (*random_standard_normal)(void*);
  const double *init_qpos, *init_qvel;
  const float *low, *high;  // of actions, [nu]
  int64_t frame_skip;
  int64_t bodies[3];         // indices of the bodies that the task reads by name
  int64_t is_dot_fused;      // whether NumPy's dot product fuses multiplications with additions
  double body_mass;          // of all bodies, summed by NumPy
  // Settings: attributes of Gymnasium's task, 0 where it has none.
  double forward_reward_weight, ctrl_cost_weight, contact_cost_weight, impact_cost_weight;
  double reward_near_weight, reward_dist_weight, reward_control_weight;
  double healthy_reward, reset_noise_scale;
  double terminate_when_unhealthy, exclude_current_positions_from_observation;
  double include_cinert_in_observation, include_cvel_in_observation;
  double include_qfrc_actuator_in_observation, include_cfrc_ext_in_observation;
  double healthy_state_range[2], healthy_z_range[2], healthy_angle_range[2];
  double contact_force_range[2], contact_cost_range[2], impact_cost_range[2];
};

// Threads that take environments one after another, together with the thread that calls `run`.
class Team {
 public:
  using Work = void (*)(MujocoBatch&, int64_t);

  explicit Team(int num_threads) {
    // Signals are for the threads of Python.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int k = 1; k < num_threads; k++) threads_.emplace_back([this] { loop(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Team() {
    begin(nullptr, nullptr);
    for (std::thread& thread : threads_) thread.join();
  }

  // Call work(batch, i) for every environment i.
  void run(Work work, MujocoBatch& batch) {
    begin(work, &batch);
    take(work, batch);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return num_busy_ == 0; });
  }

 private:
  void begin(Work work, MujocoBatch* batch) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      work_ = work, batch_ = batch, next_ = 0, num_busy_ = threads_.size(), round_++;
    }
    start_.notify_all();
  }

  void take(Work work, MujocoBatch& batch) {
    for (int64_t i; (i = next_++) < batch.num_envs;) work(batch, i);
  }

  void loop() {
    int64_t round = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return round_ != round; });
      round = round_;
      if (!work_) return;
      lock.unlock();
      take(work_, *batch_);
      lock.lock();
      if (--num_busy_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::atomic<int64_t> next_{0};
  int64_t round_ = 0, num_busy_ = 0;
  Work work_ = nullptr;
  MujocoBatch* batch_ = nullptr;
  std::vector<std::thread> threads_;
};

namespace {

// -- NumPy's arithmetic.

template <class Real>
Real clipped(Real x, Real low, Real high) {  // NaN stays
  return x < low ? low : x > high ? high : x;
}

// np.sum of of(0), ..., of(n - 1): pairwise, with eight sums side by side in blocks of at most 128.
template <class Real, class Of>
Real sum(const Of& of, long first, long n) {
  if (n < 8) {
    Real total = 0;
    for (long k = 0; k < n; k++) total += of(first + k);
    return total;
  }
  if (n > 128) {
    long half = n / 2;
    half -= half % 8;
    return sum<Real>(of, first, half) + sum<Real>(of, first + half, n - half);
  }
  Real r[8];
  for (int k = 0; k < 8; k++) r[k] = of(first + k);
  long at = 8;
  for (; at < n - n % 8; at += 8)
    for (int k = 0; k < 8; k++) r[k] += of(first + at + k);
  Real total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; at < n; at++) total += of(first + at);
  return total;
}

template <class Real>
Real sum_of_squares(const Real* x, long n) {
  return sum<Real>([x](long k) { return x[k] * x[k]; }, 0, n);
}

// np.linalg.norm, the root of BLAS's dot product.
double norm(bool is_dot_fused, const double* x, int n) {
  double dot = 0;
  for (int k = 0; k < n; k++) dot = is_dot_fused ? std::fma(x[k], x[k], dot) : dot + x[k] * x[k];
  return std::sqrt(dot);
}

// x**2 of a NumPy scalar is libm's pow; a constant exponent would be compiled to x * x.
volatile double two = 2.0;
double squared(double x) { return std::pow(x, static_cast<double>(two)); }

bool is_inside(double x, const double* range) { return range[0] < x && x < range[1]; }

// -- One environment.

struct Env {
  MujocoBatch& b;
  const mjModel* m;
  mjData* d;
  void* generator;
  const float* action;  // clipped to the bounds, [nu]

  double dt() const { return m->opt.timestep * b.frame_skip; }
  double uniform(double low, double high) const { return b.random_uniform(generator, low, high - low); }

  void simulate() const {
    for (int k = 0; k < m->nu; k++) d->ctrl[k] = action[k];
    for (long k = 0; k < b.frame_skip; k++) b.mj_step(m, d);
  }

  // Forces that only some tasks read; nothing of the simulation depends on them.
  void simulate_with_forces() const {
    simulate();
    b.mj_rne_post_constraint(m, d);
  }

  // weight * np.sum(np.square(action)): float32 because the action is.
  float cost_of_action(double weight) const { return static_cast<float>(weight) * sum_of_squares(action, m->nu); }
};

// Writes an observation.
struct Writer {
  double* at;

  void add(const double* x, long n) {
    for (long k = 0; k < n; k++) *at++ = x[k];
  }
  void add_clipped(const double* x, long n, double low, double high) {
    for (long k = 0; k < n; k++) *at++ = clipped(x[k], low, high);
  }
};

// -- Resets: noise around the first state of the model.

void draw_uniform(const Env& e, const double* around, long n, double scale, double* out) {
  for (long k = 0; k < n; k++) out[k] = around[k] + e.uniform(-scale, scale);
}

struct UniformNoise {
  static void reset(const Env& e) {
    draw_uniform(e, e.b.init_qpos, e.m->nq, e.b.reset_noise_scale, e.d->qpos);
    draw_uniform(e, e.b.init_qvel, e.m->nv, e.b.reset_noise_scale, e.d->qvel);
  }
};

struct NormalNoise {  // of velocities
  static void reset(const Env& e) {
    draw_uniform(e, e.b.init_qpos, e.m->nq, e.b.reset_noise_scale, e.d->qpos);
    for (long k = 0; k < e.m->nv; k++)
      e.d->qvel[k] = e.b.init_qvel[k] + e.b.reset_noise_scale * e.b.random_standard_normal(e.generator);
  }
};

// -- The tasks. A step returns whether the episode terminated.

// Positions without the first `num_skipped` if they are excluded, then velocities.
void write_positions(const Env& e, int num_skipped, Writer& out, double limit = INFINITY) {
  const int skipped = e.b.exclude_current_positions_from_observation != 0 ? num_skipped : 0;
  out.add(e.d->qpos + skipped, e.m->nq - skipped);
  out.add_clipped(e.d->qvel, e.m->nv, -limit, limit);
}

struct HalfCheetah : NormalNoise {
  static void observe(const Env& e, Writer& out) { write_positions(e, 1, out); }

  static bool step(const Env& e, double& reward) {
    const double before = e.d->qpos[0];
    e.simulate();
    const double velocity = (e.d->qpos[0] - before) / e.dt();
    reward = e.b.forward_reward_weight * velocity - e.cost_of_action(e.b.ctrl_cost_weight);
    return false;
  }
};

template <bool has_state_range>
struct Walker : UniformNoise {
  static void observe(const Env& e, Writer& out) { write_positions(e, 1, out, 10.0); }

  static bool step(const Env& e, double& reward) {
    const double before = e.d->qpos[0];
    e.simulate();
    const double velocity = (e.d->qpos[0] - before) / e.dt();
    const bool is_healthy = healthy(e);
    reward = (e.b.forward_reward_weight * velocity + is_healthy * e.b.healthy_reward) -
             e.cost_of_action(e.b.ctrl_cost_weight);
    return !is_healthy && e.b.terminate_when_unhealthy != 0;
  }

  static bool healthy(const Env& e) {
    bool is_healthy = is_inside(e.d->qpos[1], e.b.healthy_z_range) && is_inside(e.d->qpos[2], e.b.healthy_angle_range);
    if (has_state_range) {
      for (int k = 2; k < e.m->nq; k++) is_healthy &= is_inside(e.d->qpos[k], e.b.healthy_state_range);
      for (int k = 0; k < e.m->nv; k++) is_healthy &= is_inside(e.d->qvel[k], e.b.healthy_state_range);
    }
    return is_healthy;
  }
};

struct Ant : NormalNoise {
  static void observe(const Env& e, Writer& out) {
    write_positions(e, 2, out);
    if (e.b.include_cfrc_ext_in_observation != 0)
      out.add_clipped(e.d->cfrc_ext + 6, 6 * (e.m->nbody - 1), e.b.contact_force_range[0], e.b.contact_force_range[1]);
  }

  static bool step(const Env& e, double& reward) {
    const double* x = e.d->xpos + 3 * e.b.bodies[0];
    const double before = *x;
    e.simulate_with_forces();
    const double velocity = (*x - before) / e.dt();
    const double z = e.d->qpos[2];
    bool is_healthy = e.b.healthy_z_range[0] <= z && z <= e.b.healthy_z_range[1];
    for (int k = 0; k < e.m->nq; k++) is_healthy &= std::isfinite(e.d->qpos[k]);
    for (int k = 0; k < e.m->nv; k++) is_healthy &= std::isfinite(e.d->qvel[k]);
    const double rewards = velocity * e.b.forward_reward_weight + is_healthy * e.b.healthy_reward;
    const double forces = sum<double>(
        [&e](long k) {
          const double force = clipped(e.d->cfrc_ext[k], e.b.contact_force_range[0], e.b.contact_force_range[1]);
          return force * force;
        },
        0, 6 * e.m->nbody);
    reward = rewards - (e.cost_of_action(e.b.ctrl_cost_weight) + e.b.contact_cost_weight * forces);
    return !is_healthy && e.b.terminate_when_unhealthy != 0;
  }
};

struct Humanoid : UniformNoise {
  static void observe(const Env& e, Writer& out) {
    const long others = e.m->nbody - 1;  // all bodies but the world
    write_positions(e, 2, out);
    if (e.b.include_cinert_in_observation != 0) out.add(e.d->cinert + 10, 10 * others);
    if (e.b.include_cvel_in_observation != 0) out.add(e.d->cvel + 6, 6 * others);
    if (e.b.include_qfrc_actuator_in_observation != 0) out.add(e.d->qfrc_actuator + 6, e.m->nv - 6);
    if (e.b.include_cfrc_ext_in_observation != 0) out.add(e.d->cfrc_ext + 6, 6 * others);
  }

  static bool step(const Env& e, double& reward) {
    const double before = center_of_mass(e);
    e.simulate_with_forces();
    const double velocity = (center_of_mass(e) - before) / e.dt();
    const bool is_healthy = is_inside(e.d->qpos[2], e.b.healthy_z_range);
    const double rewards = e.b.forward_reward_weight * velocity + is_healthy * e.b.healthy_reward;
    reward = rewards - (cost_of_control(e) + cost_of_contacts(e, e.b.contact_cost_weight, e.b.contact_cost_range));
    return !is_healthy && e.b.terminate_when_unhealthy != 0;
  }

  static double center_of_mass(const Env& e) {  // its x
    double total = 0;
    for (int k = 0; k < e.m->nbody; k++) total += e.m->body_mass[k] * e.d->xipos[3 * k];
    return total / e.b.body_mass;
  }

  static double cost_of_control(const Env& e) { return e.b.ctrl_cost_weight * sum_of_squares(e.d->ctrl, e.m->nu); }

  static double cost_of_contacts(const Env& e, double weight, const double* range) {
    return clipped(weight * sum_of_squares(e.d->cfrc_ext, 6 * e.m->nbody), range[0], range[1]);
  }
};

struct HumanoidStandup : Humanoid {
  static bool step(const Env& e, double& reward) {
    e.simulate_with_forces();
    reward = e.d->qpos[2] / e.m->opt.timestep - cost_of_control(e) -
             cost_of_contacts(e, e.b.impact_cost_weight, e.b.impact_cost_range) + 1;
    return false;
  }
};

struct Swimmer : UniformNoise {
  static void observe(const Env& e, Writer& out) { write_positions(e, 2, out); }
  static bool step(const Env& e, double& reward) { return HalfCheetah::step(e, reward); }
};

struct Reacher {
  static void reset(const Env& e) {
    mjData& d = *e.d;
    const int nq = e.m->nq, nv = e.m->nv;
    draw_uniform(e, e.b.init_qpos, nq, 0.1, d.qpos);
    double goal[2];
    do
      for (double& x : goal) x = e.uniform(-0.2, 0.2);
    while (!(norm(e.b.is_dot_fused, goal, 2) < 0.2));
    std::copy_n(goal, 2, d.qpos + nq - 2);
    draw_uniform(e, e.b.init_qvel, nv, 0.005, d.qvel);
    std::fill_n(d.qvel + nv - 2, 2, 0.0);
  }

  static void observe(const Env& e, Writer& out) {
    const double* q = e.d->qpos;
    const double angles[4] = {std::cos(q[0]), std::cos(q[1]), std::sin(q[0]), std::sin(q[1])};
    out.add(angles, 4);
    out.add(q + 2, e.m->nq - 2);
    out.add(e.d->qvel, 2);
    double apart[3];
    distance(e, 0, 1, apart);
    out.add(apart, 2);
  }

  static bool step(const Env& e, double& reward) {
    e.simulate();
    double apart[3];
    distance(e, 0, 1, apart);
    reward = -norm(e.b.is_dot_fused, apart, 3) * e.b.reward_dist_weight + -e.cost_of_action(e.b.reward_control_weight);
    return false;
  }

  // The vector from the second to the first of two named bodies.
  static void distance(const Env& e, int first, int second, double* out) {
    for (int k = 0; k < 3; k++) out[k] = e.d->xpos[3 * e.b.bodies[first] + k] - e.d->xpos[3 * e.b.bodies[second] + k];
  }
};

struct Pusher {
  static void reset(const Env& e) {
    mjData& d = *e.d;
    const int nq = e.m->nq, nv = e.m->nv;
    std::copy_n(e.b.init_qpos, nq, d.qpos);
    double place[2];
    do
      place[0] = e.uniform(-0.3, 0), place[1] = e.uniform(-0.2, 0.2);
    while (!(norm(e.b.is_dot_fused, place, 2) > 0.17));
    std::copy_n(place, 2, d.qpos + nq - 4);
    std::fill_n(d.qpos + nq - 2, 2, 0.0);
    draw_uniform(e, e.b.init_qvel, nv, 0.005, d.qvel);
    std::fill_n(d.qvel + nv - 4, 4, 0.0);
  }

  static void observe(const Env& e, Writer& out) {
    out.add(e.d->qpos, 7);
    out.add(e.d->qvel, 7);
    for (const int64_t body : {e.b.bodies[1], e.b.bodies[0], e.b.bodies[2]}) out.add(e.d->xpos + 3 * body, 3);
  }

  static bool step(const Env& e, double& reward) {  // bodies: object, tip of the arm, goal
    e.simulate();
    double near[3], apart[3];
    Reacher::distance(e, 0, 1, near);
    Reacher::distance(e, 0, 2, apart);
    reward = -norm(e.b.is_dot_fused, apart, 3) * e.b.reward_dist_weight + -e.cost_of_action(e.b.reward_control_weight) +
             -norm(e.b.is_dot_fused, near, 3) * e.b.reward_near_weight;
    return false;
  }
};

struct InvertedPendulum : UniformNoise {
  static void observe(const Env& e, Writer& out) { write_positions(e, 0, out); }

  static bool step(const Env& e, double& reward) {
    e.simulate();
    bool terminated = std::fabs(e.d->qpos[1]) > 0.2;
    for (int k = 0; k < e.m->nq; k++) terminated |= !std::isfinite(e.d->qpos[k]);
    for (int k = 0; k < e.m->nv; k++) terminated |= !std::isfinite(e.d->qvel[k]);
    reward = !terminated;
    return terminated;
  }
};

struct InvertedDoublePendulum : NormalNoise {
  static void observe(const Env& e, Writer& out) {
    const mjData& d = *e.d;
    out.add(d.qpos, 1);
    for (int k = 1; k < e.m->nq; k++) *out.at++ = std::sin(d.qpos[k]);
    for (int k = 1; k < e.m->nq; k++) *out.at++ = std::cos(d.qpos[k]);
    out.add_clipped(d.qvel, e.m->nv, -10, 10);
    out.add_clipped(d.qfrc_constraint, 1, -10, 10);
  }

  static bool step(const Env& e, double& reward) {
    e.simulate();
    const double x = e.d->site_xpos[0], y = e.d->site_xpos[2];
    const bool terminated = y <= 1;
    const double penalty_of_distance = 0.01 * squared(x) + squared(y - 2);
    const double penalty_of_velocity = 1e-3 * squared(e.d->qvel[1]) + 5e-3 * squared(e.d->qvel[2]);
    reward = e.b.healthy_reward * !terminated - penalty_of_distance - penalty_of_velocity;
    return terminated;
  }
};

// -- The batch.

template <class Task>
struct Batch {
  static Env env(MujocoBatch& b, int64_t i) {
    return {b, b.model, b.data[i], b.bit_generators[i], static_cast<float*>(b.actions) + i * b.model->nu};
  }

  static void reset(TaskBatch* batch, int64_t i) {
    MujocoBatch& b = *static_cast<MujocoBatch*>(batch);
    const Env e = env(b, i);
    b.mj_reset_data(e.m, e.d);
    Task::reset(e);
    b.mj_forward(e.m, e.d);
    Writer out{static_cast<double*>(b.obs) + i * b.obs_size};
    Task::observe(e, out);
    b.last_steps[i] = b.num_steps + b.max_episode_steps;
  }

  static int64_t step(TaskBatch* batch) {
    MujocoBatch& b = *static_cast<MujocoBatch*>(batch);
    if (b.team)
      b.team->run(step_one, b);
    else
      for (long i = 0; i < b.num_envs; i++) step_one(b, i);
    // Final observations lie in the row of their environment: move them to the first rows.
    int64_t num_ended = 0;
    for (long i = 0; i < b.num_envs; i++) {
      if (!b.terminated[i] && !b.truncated[i]) continue;
      double* final_obs = static_cast<double*>(b.final_obs);
      if (num_ended < i) std::copy_n(final_obs + i * b.obs_size, b.obs_size, final_obs + num_ended * b.obs_size);
      b.ended[num_ended++] = i;
    }
    return num_ended;
  }

  // Step environment i, and reset it if its episode ends. Environments share nothing that this changes.
  static void step_one(MujocoBatch& b, int64_t i) {
    const Env e = env(b, i);
    float* action = static_cast<float*>(b.actions) + i * e.m->nu;
    for (int k = 0; k < e.m->nu; k++) action[k] = clipped(action[k], b.low[k], b.high[k]);
    b.terminated[i] = Task::step(e, b.rewards[i]);
    double* obs = static_cast<double*>(b.obs) + i * b.obs_size;
    Writer out{obs};
    Task::observe(e, out);
    b.truncated[i] = b.last_steps[i] <= b.num_steps;
    if (!b.terminated[i] && !b.truncated[i]) return;
    std::copy_n(obs, b.obs_size, static_cast<double*>(b.final_obs) + i * b.obs_size);
    reset(&b, i);
  }
};

struct Row {  // the functions of a task
  void (*reset)(TaskBatch*, int64_t);
  int64_t (*step)(TaskBatch*);
};

template <class Task>
constexpr Row row() {
  return {Batch<Task>::reset, Batch<Task>::step};
}

// In the order of TASKS in mujoco_batched.py.
constexpr Row kTasks[] = {
    row<HalfCheetah>(),      row<Walker<true>>(), row<Walker<false>>(), row<Ant>(),    row<Humanoid>(),
    row<HumanoidStandup>(),  row<Swimmer>(),      row<Reacher>(),       row<Pusher>(), row<InvertedPendulum>(),
    row<InvertedDoublePendulum>()};

// -- The state of a simulation: all of mjData but statistics of the solver and timers, which nothing reads.
//
// An mjData is two blocks of memory, `buffer`, and `arena` from its start to `parena`, with pointers into them. Those
// into the buffer depend on the model alone; those into the arena are saved as offsets.

// Calls each(address, size) for every part of the header.
template <class Each>
void for_header(mjData& d, const Each& each) {
  const size_t narena = d.narena, nbuffer = d.nbuffer;
  const int nplugin = d.nplugin;
  const uintptr_t threadpool = d.threadpool;
#define X(type, name) each(&d.name, sizeof d.name);
  MJDATA_SCALAR
#undef X
  each(d.warning, sizeof d.warning);
  each(d.energy, sizeof d.energy);
  // These belong to the memory, not to the state.
  d.narena = narena, d.nbuffer = nbuffer, d.nplugin = nplugin, d.threadpool = threadpool;
}

template <class Each>
void for_arena_pointers(mjData& d, const Each& each) {
#define X(type, name, rows, columns) each(reinterpret_cast<void*&>(d.name));
  MJDATA_ARENA_POINTERS
#undef X
}

constexpr int64_t kNone = -1;

}  // namespace

extern "C" {
void mujoco_reset(TaskBatch* batch, int64_t i) { kTasks[batch->task].reset(batch, i); }

int64_t mujoco_step(TaskBatch* batch) { return kTasks[batch->task].step(batch); }

// Step with so many threads, the caller's included, from now on.
void mujoco_set_threads(MujocoBatch* batch, int64_t num_threads) {
  delete batch->team;
  batch->team = num_threads > 1 ? new Team(num_threads) : nullptr;
}

double mujoco_norm(bool is_dot_fused, const double* x, int64_t n) { return norm(is_dot_fused, x, n); }

// Write the state of environment i to `out`, unless that is null. Returns its size.
int64_t mujoco_save(const MujocoBatch* batch, int64_t i, char* out) {
  mjData& d = *batch->data[i];
  int64_t size = 0;
  const auto put = [&](const void* from, size_t n) {
    if (out) std::memcpy(out + size, from, n);
    size += n;
  };
  for_header(d, put);
  for_arena_pointers(d, [&](void*& p) {
    const int64_t offset = p ? static_cast<char*>(p) - static_cast<char*>(d.arena) : kNone;
    put(&offset, sizeof offset);
  });
  put(d.buffer, d.nbuffer);
  put(d.arena, d.parena);
  return size;
}

// Continue environment i from a state of `size` bytes. Returns false for one of another model.
bool mujoco_restore(const MujocoBatch* batch, int64_t i, const char* from, int64_t size) {
  mjData& d = *batch->data[i];
  if (size < mujoco_save(batch, i, nullptr) - static_cast<int64_t>(d.parena)) return false;
  const auto take = [&](void* to, size_t n) { std::memcpy(to, from, n), from += n; };
  const char* end = from + size;
  for_header(d, take);
  for_arena_pointers(d, [&](void*& p) {
    int64_t offset;
    take(&offset, sizeof offset);
    p = offset == kNone ? nullptr : static_cast<char*>(d.arena) + offset;
  });
  take(d.buffer, d.nbuffer);
  if (end - from != static_cast<int64_t>(d.parena) || d.parena > static_cast<size_t>(d.narena)) return false;
  take(d.arena, d.parena);
  return true;
}
}

}  // namespace ddppo
