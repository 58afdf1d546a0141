// Prints hashes of what the C++ library computes, from the same numbers in every build: test_bits.py compares them.
//
// A line is `what shape hash`. Lines of one `what` have the same hash in any shape: rows in batches of other sizes and at
// other places of a batch.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../../ddppo/native/src/losses.hpp"
#include "../../ddppo/native/src/acting.hpp"

namespace {

using namespace ddppo;

// As learn.cpp and recurrence.cpp declare them.
struct Columns {
  const void *obs, *actions, *logprobs, *values, *advantages, *returns, *weights, *mask;
};
struct Optimizer {
  float* step;
  void *mean, *square;
  double *norms, *sums, *loss;
  const Coefficients* coefficients;
};

extern "C" {
void* network_create(const int64_t* description, void* parameters, void* gradient, const double* bounds);
void network_free(void* network);
void network_refresh(void* network);
void network_values(void* network, const void* obs, int64_t n, void* values);
int network_gradient(
    void*, const Columns*, const int64_t* order, const int64_t* bounds, double count, int64_t m, const void* own,
    const Optimizer*);
int network_epoch(
    void*, const Columns*, const int64_t* order, const int64_t* bounds, const double* counts, int64_t num_minibatches,
    double learning_rate, const void* own, const Optimizer*, const void* sum);
void rollout_act(const ActingBuffers* buffers, int64_t t);
void lstm_forward_float(int64_t steps, int64_t envs, int64_t units, const void* of);
void returns_float(
    int64_t steps, int64_t envs, int64_t num_shards, const float* rewards, const float* values, const float* next_values,
    const uint8_t* terminated, const uint8_t* truncated, const uint8_t* valid, double gamma, double decay,
    float* advantages, float* returns, double* moments);
}

uint64_t state;

double uniform() {  // a linear congruential generator, Knuth's
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return double(state >> 40) / double(1 << 24);
}

template <class Real>
std::vector<Real> numbers(std::size_t n, double low = -1, double high = 1) {
  std::vector<Real> x(n);
  for (Real& each : x) each = Real(low + (high - low) * uniform());
  return x;
}

template <class T>
uint64_t hash(const std::vector<T>& x, uint64_t of = 14695981039346656037ULL) {  // FNV-1a
  const auto* bytes = reinterpret_cast<const unsigned char*>(x.data());
  for (std::size_t i = 0; i < x.size() * sizeof(T); i++) of = (of ^ bytes[i]) * 1099511628211ULL;
  return of;
}

void say(const std::string& what, const std::string& shape, uint64_t hash) {
  std::printf("%s %s %016llx\n", what.c_str(), shape.c_str(), static_cast<unsigned long long>(hash));
}

struct Task {
  const char* name;
  Activation activation;
  bool shared, norm;
  ActionKind kind;
  long obs, sizes;  // sizes: choices of a discrete action, dimensions of a box
  std::vector<long> hidden;
  bool of_state = false;  // standard deviations are outputs
  std::vector<long> of_policy = {};  // layers behind the shared ones
  bool joins = false;                // behind the shared ones: the last two added, then that sum beside the observation

  bool is_box() const { return kind == kBox || kind == kBeta; }
  bool puts_out_all() const { return kind == kBeta || of_state; }
  std::vector<double> bounds() const {  // of Beta: lows, then widths
    std::vector<double> x(kind == kBeta ? sizes : 0, -0.7);
    x.resize(2 * x.size(), 1.9);
    return x;
  }
};

template <class Real>
struct Network {
  explicit Network(const Task& task) {
    std::vector<int64_t> offsets;
    int64_t total = 0;
    auto place = [&](long size) { offsets.push_back(total), total += size; };
    auto linear = [&](long in, long out) { place(in * out), place(out); };
    // The description of the layers: shared ones, those of the policy and those of the values.
    std::vector<int64_t> d = {sizeof(Real) == 8, task.kind, task.of_state, task.obs, 0};
    long widths[3], last[3];
    for (int trunk = 0; trunk < 3; trunk++) {
      long &in = widths[trunk] = trunk ? widths[0] : task.obs, &below = last[trunk] = trunk ? last[0] : -1;
      const std::vector<long> layers = (trunk == 0) == task.shared ? task.hidden : trunk == 1 ? task.of_policy : std::vector<long>{};
      for (long out : layers) {
        linear(in, out);
        if (task.norm) place(out), place(out);
        d.insert(d.end(), {out, task.activation, true, task.norm, 1, below, 0, in, 0});
        in = out, below = d[4]++;
      }
      if (!task.joins || trunk) continue;
      if (task.norm) place(in), place(in);
      d.insert(d.end(), {in, task.activation, false, task.norm, 2, below - 1, 0, in, 0, below, 0, in, 0});
      d.insert(d.end(), {in + task.obs - 1, kIdentity, false, false, 2, below + 1, 0, in, 0, -1, 1, task.obs - 1, in});
      in += task.obs - 1, below += 2, d[4] += 2;
    }
    d.insert(d.end(), {last[1], last[2]});
    linear(widths[1], task.puts_out_all() ? 2 * task.sizes : task.sizes), linear(widths[2], 1);
    if (task.kind == kBox && !task.of_state) place(task.sizes);
    parameters = numbers<Real>(total, -0.4, 0.4);
    gradient.assign(total, 0);
    d.push_back(1), d.push_back(task.sizes);
    d.push_back(int64_t(offsets.size()));
    d.insert(d.end(), offsets.begin(), offsets.end());
    d.push_back(total), d.push_back(0);
    handle = network_create(d.data(), parameters.data(), gradient.data(), task.bounds().empty() ? nullptr : task.bounds().data());
  }
  ~Network() { network_free(handle); }

  std::vector<Real> parameters, gradient;
  void* handle;
};

constexpr long kRows = 211;

template <class Real>
void networks(const Task& task, const std::string& type) {
  state = 1;
  Network<Real> network(task);
  const std::string what = std::string(task.name) + "-" + type;
  const bool is_box = task.is_box();
  const std::vector<double> bounds = task.bounds();
  const long params = is_box ? 2 * task.sizes : task.sizes, noise = is_box ? task.sizes : 1;
  const auto obs = numbers<Real>(kRows * task.obs, -2, 2);
  const auto draws = numbers<double>(kRows * noise, 0, 1);
  std::vector<Real> out(kRows * params), logprobs(kRows), values(kRows), actions(is_box ? kRows * noise : 0);
  std::vector<int64_t> choices(is_box ? 0 : kRows);

  network_refresh(network.handle);
  for (long size : {1, 2, 3, 5, 6, 7, 8, 13, 31, 96, 100, 211}) {
    for (long r = 0; r < kRows; r += size) {
      const long n = std::min(size, kRows - r);
      const int64_t sizes[] = {task.sizes};
      ActingBuffers b{};
      b.network = network.handle, b.is_double = sizeof(Real) == 8, b.kind = task.kind, b.num_envs = n;
      b.obs_size = task.obs, b.num_params = params, b.num_noise = noise, b.sizes = sizes;
      b.noise = draws.data() + r * noise, b.bounds = bounds.empty() ? nullptr : bounds.data();
      b.obs = const_cast<Real*>(obs.data()) + r * task.obs;
      b.actions = is_box ? static_cast<void*>(actions.data() + r * noise) : static_cast<void*>(choices.data() + r);
      b.params = out.data() + r * params, b.logprobs = logprobs.data() + r;
      rollout_act(&b, 0);
      network_values(network.handle, obs.data() + r * task.obs, n, values.data() + r);
    }
    const std::string shape = std::to_string(size);
    say(what + "-policy", shape, hash(out));
    say(what + "-value", shape, hash(values));
    say(what + "-acting", shape, hash(logprobs, is_box ? hash(actions) : hash(choices)));
  }

  // The same 83 rows from other places of a batch; then five steps of Adam.
  const auto advantages = numbers<Real>(kRows), returns = numbers<Real>(kRows);
  const std::vector<Real> weights(kRows, 1);
  for (Real& each : logprobs) each += Real(0.4 * (uniform() - 0.5));
  const Coefficients coefficients{0.2, 0.5, 0.01, 0.2, 0.5, 1e-5};
  constexpr long kPart = 83;
  for (long place : {0, 1, 64, 128}) {
    std::vector<Real> o(kRows * task.obs), a(actions.size()), l(kRows), v(kRows), adv(kRows), ret(kRows);
    std::vector<int64_t> c(choices.size()), order;
    for (long r = 0; r < kRows; r++) {
      const long to = (r + place) % kRows;
      std::copy_n(&obs[r * task.obs], task.obs, &o[to * task.obs]);
      if (is_box) std::copy_n(&actions[r * noise], noise, &a[to * noise]);
      else c[to] = choices[r];
      l[to] = logprobs[r], v[to] = values[r], adv[to] = advantages[r], ret[to] = returns[r];
    }
    for (long r = 0; r < kPart; r++) order.push_back((r * 2 + place) % kRows);
    const Columns columns{o.data(),   is_box ? static_cast<void*>(a.data()) : static_cast<void*>(c.data()),
                          l.data(),   v.data(), adv.data(), ret.data(), weights.data(), nullptr};
    double norms = 0, loss = 0;
    std::vector<double> sums(kNumStatistics);
    const Optimizer optimizer{nullptr, nullptr, nullptr, &norms, sums.data(), &loss, &coefficients};
    const int64_t all[] = {0, kPart};
    network_gradient(network.handle, &columns, order.data(), all, kPart, 0, nullptr, &optimizer);
    sums.push_back(loss);
    say(what + "-gradient", std::to_string(place), hash(network.gradient));
    say(what + "-statistics", std::to_string(place), hash(sums));
    if (place) continue;
    float step = 0;
    std::vector<Real> mean(network.parameters.size()), square(network.parameters.size()), before = network.parameters;
    const Optimizer adam{&step, mean.data(), square.data(), &norms, sums.data(), &loss, &coefficients};
    std::vector<int64_t> bounds = {0, 17, 34, 50, 66, kPart};
    std::vector<double> counts = {17, 17, 16, 16, 17};
    network_epoch(
        network.handle, &columns, order.data(), bounds.data(), counts.data(), 5, 1e-3, nullptr, &adam, nullptr);
    say(what + "-adam", "0", hash(network.parameters, hash(square)));
    network.parameters = before;
  }
}

void recurrence() {
  state = 2;
  constexpr long kSteps = 3, kEnvs = 13, kUnits = 32;
  struct Forward {
    const float *inputs, *keeps, *h;
    float* c;
    const float* weight;
    float *gates, *h_before, *c_before, *tanh_c, *outputs;
  };
  const auto inputs = numbers<float>(kSteps * kEnvs * 4 * kUnits), weight = numbers<float>(4 * kUnits * kUnits, -0.3, 0.3);
  const auto h = numbers<float>(kEnvs * kUnits), c0 = numbers<float>(kEnvs * kUnits);
  for (long size : {1, 2, 3, 6, 7, 13}) {
    std::vector<float> all(kSteps * kEnvs * kUnits);
    for (long e = 0; e < kEnvs; e += size) {
      const long n = std::min(size, kEnvs - e), cells = kSteps * n * kUnits;
      std::vector<float> in, keeps(kSteps * n, 1.0f), c(&c0[e * kUnits], &c0[e * kUnits] + n * kUnits);
      for (long t = 0; t < kSteps; t++)
        in.insert(in.end(), &inputs[(t * kEnvs + e) * 4 * kUnits], &inputs[(t * kEnvs + e) * 4 * kUnits] + n * 4 * kUnits);
      std::vector<float> gates(4 * cells), hb(cells), cb(cells), tc(cells), out(cells);
      const Forward of{in.data(), keeps.data(), &h[e * kUnits], c.data(), weight.data(),
                       gates.data(), hb.data(), cb.data(), tc.data(), out.data()};
      lstm_forward_float(kSteps, n, kUnits, &of);
      for (long t = 0; t < kSteps; t++)
        std::copy_n(&out[t * n * kUnits], n * kUnits, &all[(t * kEnvs + e) * kUnits]);
    }
    say("lstm-float", std::to_string(size), hash(all));
  }
}

void advantages() {
  state = 3;
  constexpr long kSteps = 9, kEnvs = 24;
  const auto rewards = numbers<float>(kSteps * kEnvs), values = numbers<float>(kSteps * kEnvs);
  for (long size : {1, 3, 24}) {
    std::vector<float> all(kSteps * kEnvs);
    for (long e = 0; e < kEnvs; e += size) {
      std::vector<float> r, v, adv(kSteps * size), ret(kSteps * size);
      std::vector<uint8_t> no(kSteps * size, 0), yes(kSteps * size, 1);
      for (long t = 0; t < kSteps; t++)
        for (long i = 0; i < size; i++) r.push_back(rewards[t * kEnvs + e + i]), v.push_back(values[t * kEnvs + e + i]);
      double moments[9];
      returns_float(
          kSteps, size, 1, r.data(), v.data(), v.data(), no.data(), no.data(), yes.data(), 0.99, 0.9405, adv.data(),
          ret.data(), moments);
      for (long t = 0; t < kSteps; t++) std::copy_n(&adv[t * size], size, &all[t * kEnvs + e]);
    }
    say("advantages-float", std::to_string(size), hash(all));
  }
}

}  // namespace

int main() {
  const Task tasks[] = {
      {"tanh-discrete", kTanh, false, false, kDiscrete, 4, 3, {64, 64}},
      {"tanh-box", kTanh, true, false, kBox, 17, 6, {33, 9}},
      {"relu-box", kRelu, false, false, kBox, 16, 2, {48}},
      {"silu-box", kSilu, false, false, kBox, 16, 2, {48}},
      {"gelu-discrete", kGelu, true, false, kDiscrete, 4, 3, {33}},
      {"norm-tanh-discrete", kTanh, false, true, kDiscrete, 4, 3, {64, 33}},
      {"norm-silu-box", kSilu, true, true, kBox, 17, 6, {37, 9}},
      {"state-tanh-box", kTanh, true, false, kBox, 17, 6, {33}, true},
      {"beta-tanh-box", kTanh, false, false, kBeta, 17, 5, {33}},
      {"own-relu-box", kRelu, true, true, kBox, 17, 6, {37}, false, {21, 9}},
      {"joined-gelu-box", kGelu, true, false, kBox, 17, 6, {21, 21}, false, {9}, true},
      {"joined-norm-tanh-discrete", kTanh, true, true, kDiscrete, 5, 3, {33, 33}, false, {}, true},
  };
  for (const Task& task : tasks) {
    networks<float>(task, "float");
    // In float64 GELU calls erfc, which C libraries round differently: glibc for arm64 does.
    if (task.activation != kGelu) networks<double>(task, "double");
  }
  recurrence();
  advantages();
}
