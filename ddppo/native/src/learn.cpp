// The functions of the network that Python calls (ddppo/ppo/cpp/{network,learner}.py): acting, values, the gradient of
// a minibatch, and an epoch of optimizer steps. Read network_epoch at the end first: for each minibatch it computes the
// gradient, sums it over ranks, clips it and moves the parameters by Adam.
#include <ctime>
#include <limits>

#include "losses.hpp"

namespace ddppo {

// The arrays of a batch, in the order of _COLUMNS in ddppo/ppo/cpp/learner.py.
struct Columns {
  const void *obs, *actions, *logprobs, *values, *advantages, *returns, *weights, *mask;
};

// The state of torch's Adam, and the sums of an iteration.
struct Optimizer {
  float* step;          // number of steps
  void *mean, *square;  // first and second moment [num_parameters]
  double* norms;        // sum of the gradients' norms before clipping; not finite from the first bad gradient on
  double* sums;         // [S, kNumStatistics + K] over samples, a row for each of this rank's S shards
  double* loss;         // this rank's loss of the last minibatch with a finite sum of norms before it
  const Coefficients* coefficients;
};

// Terms of the user's own beside PPO's loss, which torch computes and differentiates by the network's outputs;
// _Terms of ddppo/ppo/cpp/learner.py has the same fields. Arrays have a row for each row of a minibatch of this rank.
struct OwnTerms {
  int64_t num_terms, num_rows;      // K, and the rows for which there is room
  void *params, *values;            // in: outputs of the network [n, P], [n]
  const void *dparams, *dvalues;    // out: the gradient by them of the terms' sum, each times weight and coefficient
  const void* terms;                // out: [K, num_rows], each term before its coefficient
  const double* coefficients;       // [K]
  int (*compute)(int64_t minibatch);  // writes what is out; 0 for success
};

// How to sum the gradient over ranks; _Sum of ddppo/ppo/cpp/learner.py has the same fields. With shared memory, `begin`
// is the collective in C, and `go_on` (Python) waits if it is not complete at once. Otherwise `begin` is null and
// `go_on` does the whole sum in Python. Both return 0 for success.
struct Sum {
  int (*begin)(void*, uint64_t, uint64_t, const void*, void*, uint64_t);
  void* context;
  uint64_t what, type;  // SUM and the type of numbers, as in collectives/shared_memory.c
  void* gradient;
  uint64_t num_bytes;
  int (*go_on)(int status);
  double* stamps;  // out: [num_minibatches, 2] begin and end of each sum, in seconds of the monotonic clock
};

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

int sum_over_ranks(const Sum& sum, int64_t minibatch) {
  if (!sum.begin) return sum.go_on(0);
  sum.stamps[2 * minibatch] = now();
  if (const int status = sum.begin(sum.context, sum.what, sum.type, sum.gradient, sum.gradient, sum.num_bytes))
    if (const int fault = sum.go_on(status)) return fault;
  sum.stamps[2 * minibatch + 1] = now();
  return 0;
}

// A network with its gradient and optimizer, for float or double (TypedEngine).
class Engine {
 public:
  virtual ~Engine() = default;
  virtual void refresh() = 0;
  virtual void policy_rows(const void* obs, long n, void* params) = 0;
  virtual void value_rows(const void* obs, long n, void* values) = 0;
  virtual void use_shards(void* rows, long num_shards, bool adds) = 0;
  virtual void gradient(
      const Columns& columns, const int64_t* order, const int64_t* bounds, double count, const OwnTerms* own,
      const Optimizer& optimizer) = 0;
  virtual void outputs(const Columns& columns, const int64_t* order, const int64_t* bounds, const OwnTerms& own) = 0;
  virtual void forward(const void* obs, long n, void* params, void* values) = 0;
  virtual void backward(const void* obs, long n, const void* dparams, const void* dvalues) = 0;
  long num_shards = 1;
  virtual void optimize(double learning_rate, const Optimizer& optimizer) = 0;
};

template <class Real>
class TypedEngine final : public Engine {
 public:
  TypedEngine(
      const Shape& shape, const Actions& actions, const std::vector<long>& offsets, Real* parameters, Real* gradient,
      long num_parameters)
      : actions_(actions), network_(shape, offsets, parameters), parameters_(parameters), gradient_(gradient),
        num_parameters_(num_parameters), gradients_{gradient, 1, num_parameters} {}

  void refresh() override { network_.refresh(); }

  void policy_rows(const void* obs, long n, void* params) override {
    network_.policy_rows(static_cast<const Real*>(obs), n, static_cast<Real*>(params));
  }

  void value_rows(const void* obs, long n, void* values) override {
    network_.value_rows(static_cast<const Real*>(obs), n, static_cast<Real*>(values));
  }

  void use_shards(void* rows, long n, bool adds) override {
    num_shards = n;
    gradients_ = {static_cast<Real*>(rows), n, num_parameters_};
    adds_ = adds;
    network_.make_sums(n);
  }

  // Write the outputs for this rank's part of a minibatch, and keep the activations for `gradient`.
  void outputs(const Columns& c, const int64_t* order, const int64_t* bounds, const OwnTerms& own) override {
    network_.refresh();
    network_.forward_rows(
        static_cast<const Real*>(c.obs), order, bounds[0], bounds[num_shards] - bounds[0],
        static_cast<Real*>(own.params), static_cast<Real*>(own.values));
  }

  // The same of observations [n, obs_size], for `backward`.
  void forward(const void* obs, long n, void* params, void* values) override {
    network_.refresh();
    network_.forward_rows(
        static_cast<const Real*>(obs), nullptr, 0, n, static_cast<Real*>(params), static_cast<Real*>(values));
  }

  // The gradient of any loss, whose gradient by the outputs of `forward` is dparams [n, P] and dvalues [n].
  void backward(const void* obs, long n, const void* dparams, const void* dvalues) override {
    const int64_t bounds[] = {0, n};
    network_.accumulate(
        static_cast<const Real*>(obs), nullptr, bounds, true, {gradient_, 1, num_parameters_},
        [&](long, long first, long rows, const Real*, const Real*, Real* by_params, Real* by_values, Real* by_log_std) {
          const long outputs = network_.shape.num_outputs, num_params = network_.num_params();
          for (long r = 0; r < rows; r++) {
            const Real* slopes = static_cast<const Real*>(dparams) + (first + r) * num_params;
            std::copy_n(slopes, outputs, by_params + r * network_.params_width());
            for (long j = outputs; j < num_params; j++) by_log_std[j - outputs] += slopes[j];
            by_values[r * network_.values_width()] = static_cast<const Real*>(dvalues)[first + r];
          }
        });
  }

  // The gradient of this rank's part of a minibatch: the rows [bounds[0], bounds[1]), or with S shards those up to
  // bounds[S], of which shard s has [bounds[s], bounds[s + 1]). own: terms that were computed from `outputs`, or null.
  void gradient(
      const Columns& c, const int64_t* order, const int64_t* bounds, double count, const OwnTerms* own,
      const Optimizer& optimizer) override {
    const Batch<Real> batch{
        static_cast<const Real*>(c.obs), c.actions, static_cast<const Real*>(c.logprobs),
        static_cast<const Real*>(c.values), static_cast<const Real*>(c.advantages),
        static_cast<const Real*>(c.returns), static_cast<const Real*>(c.weights),
        static_cast<const uint8_t*>(c.mask), order};
    PPOLoss<Real> of_rows(actions_, batch, *optimizer.coefficients, count, network_.log_std());
    const long num_sums = kNumStatistics + (own ? own->num_terms : 0);
    std::vector<double> sums(num_shards * num_sums);  // of this minibatch
    double loss = 0;
    if (!own) network_.refresh();
    network_.accumulate(
        batch.obs, order, bounds, own != nullptr, gradients_,
        [&](long shard, long first, long rows, const Real* params, const Real* values, Real* dparams, Real* dvalues,
            Real* dlog_std) {
          loss += of_rows.block(
              first, rows, params, network_.params_width(), values, network_.values_width(), dparams, dvalues, dlog_std,
              &sums[shard * num_sums]);
          if (own)
            loss += add_terms(
                *own, batch, count, first, first - bounds[0], rows, dparams, dvalues, dlog_std,
                &sums[shard * num_sums + kNumStatistics]);
        });
    for (std::size_t i = 0; i < sums.size(); i++) optimizer.sums[i] += sums[i];
    if (std::isfinite(*optimizer.norms)) *optimizer.loss = loss;
    // One rank's NaN makes the sum over ranks NaN on all ranks, so none moves its parameters from this minibatch on.
    if (!std::isfinite(loss)) std::fill_n(gradients_.data, num_parameters_, std::numeric_limits<Real>::quiet_NaN());
    if (adds_) add_shards();
  }

  // Clip the gradient by its norm, and move the parameters by Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1).
  // After the first norm that is not finite, the sum of norms stays so, and nothing moves for the rest of the
  // iteration.
  void optimize(double learning_rate, const Optimizer& o) override {
    const Coefficients& c = *o.coefficients;
    const double norm = length();
    *o.norms += norm;
    if (!std::isfinite(*o.norms)) return;
    const Real scale = norm > c.max_norm ? Real(c.max_norm / (norm + 1e-6)) : Real(1);
    *o.step += 1;
    const double t = *o.step;
    const Real rate = Real(learning_rate / (1 - std::pow(0.9, t)));
    const Real root = Real(1 / std::sqrt(1 - std::pow(0.999, t)));
    const Real eps = Real(c.adam_eps), b1 = Real(0.9), b2 = Real(0.999), d1 = Real(1 - 0.9), d2 = Real(1 - 0.999);
    Real* __restrict mean = static_cast<Real*>(o.mean);
    Real* __restrict square = static_cast<Real*>(o.square);
    Real* __restrict parameters = parameters_;
    Real* __restrict gradient = gradient_;
    for (long i = 0; i < num_parameters_; i++) {
      const Real g = gradient[i] * scale;
      gradient[i] = g;
      mean[i] = b1 * mean[i] + d1 * g;
      square[i] = b2 * square[i] + d2 * g * g;
      parameters[i] -= rate * mean[i] / (std::sqrt(square[i]) * root + eps);
    }
  }

 private:
  // Add the gradient of the user's own terms for the rows of a piece, which begins at row `first` of the minibatch and
  // row `own_first` of their arrays, and add the weighted terms to `sums` [K]. Return their part of the loss.
  double add_terms(
      const OwnTerms& own, const Batch<Real>& batch, double count, long first, long own_first, long rows, Real* dparams,
      Real* dvalues, Real* dlog_std, double* sums) const {
    const long outputs = network_.shape.num_outputs, num_params = network_.num_params();
    const Real per_count = Real(1.0 / count);
    for (long r = 0; r < rows; r++) {
      const Real* slopes = static_cast<const Real*>(own.dparams) + (own_first + r) * num_params;
      for (long j = 0; j < outputs; j++) dparams[r * network_.params_width() + j] += slopes[j] * per_count;
      for (long j = outputs; j < num_params; j++) dlog_std[j - outputs] += slopes[j] * per_count;
      dvalues[r * network_.values_width()] += static_cast<const Real*>(own.dvalues)[own_first + r] * per_count;
    }
    double loss = 0;
    for (long k = 0; k < own.num_terms; k++) {
      const Real* terms = static_cast<const Real*>(own.terms) + k * own.num_rows + own_first;
      double sum = 0;
      for (long r = 0; r < rows; r++)
        sum += double(batch.weights[batch.order ? batch.order[first + r] : first + r]) * double(terms[r]);
      sums[k] += sum;
      loss += own.coefficients[k] * sum / count;
    }
    return loss;
  }

  // The norm of the gradient. Eight chains of sums, so that additions do not wait for one another.
  double length() const {
    double sums[8] = {};
    long i = 0;
    for (; i + 8 <= num_parameters_; i += 8)
      for (int j = 0; j < 8; j++) sums[j] += double(gradient_[i + j]) * double(gradient_[i + j]);
    for (; i < num_parameters_; i++) sums[0] += double(gradient_[i]) * double(gradient_[i]);
    double sum = 0;
    for (double part : sums) sum += part;
    return std::sqrt(sum);
  }

  // Add the gradients of shards in pairs, 0 + 1, 2 + 3, ..., then these sums in pairs, and so on, as
  // collectives/group.py:sum_in_pairs does. kPart numbers at a time, which stay in the cache.
  void add_shards() {
    constexpr long kPart = 1024;
    for (long first = 0; first < num_parameters_; first += kPart) {
      const long n = std::min(kPart, num_parameters_ - first);
      for (long step = 1; step < num_shards; step *= 2)
        for (long shard = 0; shard + step < num_shards; shard += 2 * step) {
          Real* __restrict sum = gradients_.of(shard) + first;
          const Real* __restrict part = gradients_.of(shard + step) + first;
          for (long i = 0; i < n; i++) sum[i] += part[i];
        }
      std::copy_n(gradients_.of(0) + first, n, gradient_ + first);
    }
  }

  const Actions actions_;
  Network<Real> network_;
  Real *parameters_, *gradient_;
  const long num_parameters_;
  Gradients<Real> gradients_;  // of shards; without any, the flat gradient
  bool adds_ = false;          // whether the gradients of shards are added here
};

}  // namespace ddppo

using namespace ddppo;

extern "C" {

// Make a network that reads `parameters` and writes `gradient`, two flat vectors [num_parameters] that outlive it.
// description: is_double, kind of action, puts_out_log_std, obs_size; the number of layers, and of each (width,
// activation, has_linear, has_norm, number of sources, and of each (layer or -1, first, width, column)); the layers that
// the two heads read; num_sizes, sizes..., num_offsets, offsets..., num_parameters, num_nodes.
// bounds: shifts, scales [dimensions], nodes, weights [num_nodes] of Actions in losses.hpp, or null.
void* network_create(const int64_t* description, void* parameters, void* gradient, const double* bounds) {
  const int64_t* at = description;
  const bool is_double = *at++;
  Shape shape;
  Actions actions;
  actions.kind = static_cast<ActionKind>(*at++);
  shape.puts_out_log_std = *at++;
  shape.has_log_std = actions.kind == kBox && !shape.puts_out_log_std;
  shape.obs_size = *at++;
  auto list = [&at](std::vector<long>& values) {
    const int64_t n = *at++;
    values.assign(at, at + n);
    at += n;
  };
  for (int64_t n = *at++; n > 0; n--) {
    shape.layers.push_back({at[0], static_cast<Activation>(at[1]), at[2] != 0, at[3] != 0, {}});
    at += 5;
    for (int64_t num = at[-1]; num > 0; num--, at += 4) shape.layers.back().sources.push_back({at[0], at[1], at[2], at[3]});
  }
  shape.policy = *at++, shape.value = *at++;
  list(actions.sizes);
  const bool sums = actions.kind == kDiscrete || actions.kind == kMultiDiscrete;
  actions.num_params = 0;
  for (long size : actions.sizes) actions.num_params = sums ? actions.num_params + size : size;
  if (shape.puts_out_log_std || actions.kind == kBeta) actions.num_params *= 2;
  shape.num_outputs = actions.num_params;
  std::vector<long> offsets;
  list(offsets);
  const long num_parameters = *at++, num_nodes = *at++;
  if (bounds)
    for (auto* values : {&actions.shifts, &actions.scales, &actions.nodes, &actions.weights}) {
      const long n = values == &actions.shifts || values == &actions.scales ? actions.sizes[0] : num_nodes;
      values->assign(bounds, bounds + n);
      bounds += n;
    }
  if (is_double)
    return new TypedEngine<double>(
        shape, actions, offsets, static_cast<double*>(parameters), static_cast<double*>(gradient), num_parameters);
  return new TypedEngine<float>(
      shape, actions, offsets, static_cast<float*>(parameters), static_cast<float*>(gradient), num_parameters);
}

void network_free(void* network) { delete static_cast<Engine*>(network); }

void network_refresh(void* network) { static_cast<Engine*>(network)->refresh(); }

void network_policy(void* network, const void* obs, int64_t n, void* params) {
  static_cast<Engine*>(network)->policy_rows(obs, n, params);
}

void network_values(void* network, const void* obs, int64_t n, void* values) {
  static_cast<Engine*>(network)->value_rows(obs, n, values);
}

// Write params [n, P] and values [n] of observations [n, obs_size], and keep the activations. Then the gradient, from
// that by these outputs.
void network_forward(void* network, const void* obs, int64_t n, void* params, void* values) {
  static_cast<Engine*>(network)->forward(obs, n, params, values);
}

void network_backward(void* network, const void* obs, int64_t n, const void* dparams, const void* dvalues) {
  static_cast<Engine*>(network)->backward(obs, n, dparams, dvalues);
}

// Sum the gradients of this rank's shards apart (dist.reduction=ordered), in rows [num_shards, num_parameters], which
// must outlive the network. adds: then add them in pairs. Otherwise the rows are what `go_on` of Sum begins with.
void network_use_shards(void* network, void* rows, int64_t num_shards, int64_t adds) {
  static_cast<Engine*>(network)->use_shards(rows, num_shards, adds);
}

// Compute the gradient of rows [bounds[0], bounds[1]), or of [bounds[0], bounds[S]) with S shards. Minibatch m of the
// epoch, for the terms of the user's own, if any. Returns 0, or what failed in them.
int network_gradient(
    void* network, const Columns* columns, const int64_t* order, const int64_t* bounds, double count, int64_t m,
    const OwnTerms* own, const Optimizer* optimizer) {
  auto* engine = static_cast<Engine*>(network);
  if (own) {
    engine->outputs(*columns, order, bounds, *own);
    if (const int status = own->compute(m)) return status;
  }
  engine->gradient(*columns, order, bounds, count, own, *optimizer);
  return 0;
}

// One epoch: an optimizer step for each minibatch. Minibatch m holds the samples order[bounds[m]], ..., before
// order[bounds[m + 1]], of this rank; counts[m] is the number of its samples over all ranks. A minibatch that counts 0
// is passed over on every rank. Returns 0, or at once the result of a sum or of own terms that failed. With S shards,
// part s of minibatch m is [bounds[m S + s], bounds[m S + s + 1]), and every shard has its own row of sums.
int network_epoch(
    void* network, const Columns* columns, const int64_t* order, const int64_t* bounds, const double* counts,
    int64_t num_minibatches, double learning_rate, const OwnTerms* own, const Optimizer* optimizer, const Sum* sum) {
  auto* engine = static_cast<Engine*>(network);
  for (int64_t m = 0; m < num_minibatches; m++) {
    if (counts[m] == 0) continue;
    const int64_t* parts = bounds + m * engine->num_shards;
    if (const int status = network_gradient(network, columns, order, parts, counts[m], m, own, optimizer))
      return status;
    if (sum)
      if (const int status = sum_over_ranks(*sum, m)) return status;
    engine->optimize(learning_rate, *optimizer);
  }
  return 0;
}

}  // extern "C"
