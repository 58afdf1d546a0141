// Games of CAGE challenge 2 with the bits of ddppo/domains/cage2/{games,rules}.py, where the rules have their
// words; the tables are made there. Functions have the names that they have there.
#include "cage2.hpp"

namespace ddppo {
namespace {

enum Operation : uint8_t { kSleep, kSweep, kScan, kExploit, kEscalate, kImpact };
enum Outcome : uint8_t { kFails, kLasts, kTraced, kRoot };
enum Trace { kUnseen, kScanned, kKnocked, kAnswered };
enum Belief : uint8_t { kNo, kUnknown, kUser, kPrivileged };
enum Slot { kGreenSlot, kTargetSlot, kExploitSlot, kDetectionSlot, kSlots };
constexpr int kNobody = kHosts, kOpServer = 7, kUser0 = 8, kSsh = 7, kNumExploits = 8, kFirstHosts = 4, kLastPhase = 14;
constexpr int kRestoreTenths = 10, kDownTenths = 100;
constexpr uint16_t kEnterpriseHosts = 0b1110;  // without the Defender, as Meander counts them

double draw(const Cage2Game& game, Slot slot) {
  uint64_t z = game.key + (game.time * kSlots + slot + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return ((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

uint16_t bit(int host) { return host < kHosts ? 1 << host : 0; }

int nth(uint16_t hosts, int n) {
  while (n-- > 0) hosts &= hosts - 1;
  return __builtin_ctz(hosts);
}

void b_line(const Cage2Batch& batch, Cage2Game& game) {
  if (game.time == 0) game.first = draw(game, kTargetSlot) * kFirstHosts;
  game.phase = !game.success ? batch.after_failure[game.phase] : game.phase < kLastPhase ? game.phase + 1 : kLastPhase;
  game.operation = batch.operations[game.phase];
  game.target = batch.targets[game.phase * kFirstHosts + game.first];
}

void learn(const Cage2Batch& batch, Cage2Game& game) {
  const uint16_t target = bit(game.target);
  if (game.success) {
    if (game.operation == kExploit) game.entered |= target;
    return;
  }
  uint16_t lost = game.operation >= kEscalate ? target : 0, forgotten = lost;
  if (game.operation == kExploit) {
    const uint16_t operational = game.escalated & batch.subnet[kOpServer];
    lost = operational ? operational : game.escalated & kEnterpriseHosts;
    forgotten = lost | target;
  }
  game.escalated &= ~lost;
  game.exploited &= ~forgotten;
}

void meander(const Cage2Batch& batch, Cage2Game& game) {
  learn(batch, game);
  uint16_t none = 0;
  const struct {
    Operation operation;
    uint16_t candidates;
    uint16_t& tried;
  } choices[] = {
      {kImpact, uint16_t(game.escalated & bit(kOpServer)), none},
      {kSweep, uint16_t(game.subnets & ~game.swept), game.swept},
      {kScan, uint16_t(game.known & ~game.scanned), game.scanned},
      {kEscalate, uint16_t((game.entered | bit(kUser0)) & ~game.escalated & (game.exploited | ~game.entered)),
       game.escalated},
      {kExploit, uint16_t(game.known & ~game.exploited), game.exploited},
  };
  game.operation = kSleep;
  game.target = kNobody;
  for (const auto& choice : choices)
    if (choice.candidates) {
      const int place = draw(game, kTargetSlot) * __builtin_popcount(choice.candidates);
      game.operation = choice.operation;
      game.target = nth(choice.candidates, place);
      choice.tried |= bit(game.target);
      return;
    }
}

uint16_t open_ports(const Cage2Batch& batch, const Cage2Game& game, int host) {
  return batch.open[host] | game.decoys[host];
}

// Return whether an Analyse found files.
bool blue(const Cage2Batch& batch, Cage2Game& game, int64_t action) {
  const uint16_t restored = batch.restored[action];
  const int64_t host = batch.host_of[action];
  const bool found = game.files & batch.analysed[action];
  game.traced &= ~(batch.removed[action] | restored);
  game.lasting &= ~restored;
  game.root &= ~batch.freed[action];
  game.files &= ~restored;
  if (restored) game.decoys[host] = 0;
  if (restored == bit(kOpServer)) {
    game.down = false;
    game.immune |= batch.has_quirk != 0;
  }
  if (batch.opened[action] && !(open_ports(batch, game, host) & batch.checked[action]))
    game.decoys[host] |= batch.opened[action];
  return found;
}

Trace exploit(const Cage2Batch& batch, Cage2Game& game) {
  const int host = game.target;
  const uint16_t seen = game.seen[host];
  const int64_t others = batch.num_exploits[seen] - 1;
  if (others < 0) return kUnseen;
  const double u = draw(game, kExploitSlot);
  const int place =
      u < batch.preferred || others < 1 ? 0 : 1 + int((u - batch.preferred) / (1 - batch.preferred) * others);
  const int chosen = batch.nth_exploit[seen * kNumExploits + place];
  const uint16_t port = batch.exploit_port[chosen];
  const bool is_real = batch.open[host] & port;
  const uint8_t outcome = is_real ? batch.outcome[host * kNumExploits + chosen] : uint8_t(kFails);
  const bool detected = draw(game, kDetectionSlot) < batch.detected;
  if (outcome == kRoot) game.root |= bit(host);
  if (outcome == kLasts || (outcome == kTraced && !detected)) game.lasting |= bit(host);
  if (outcome == kTraced && detected) game.traced |= bit(host);
  if (outcome != kFails && chosen != kSsh) game.files |= bit(host);
  game.success = outcome != kFails;
  if (is_real && chosen == kSsh) return kKnocked;
  if (!(open_ports(batch, game, host) & port)) return kUnseen;
  return game.success && detected ? kAnswered : kScanned;
}

// Do what Red chose; return what the monitor can see of it on the target.
Trace operate(const Cage2Batch& batch, Cage2Game& game) {
  const uint16_t held = game.traced | game.lasting | game.root, target = bit(game.target);
  const bool routed = !(batch.subnet[game.target] & batch.subnet[kOpServer]) || (held & batch.subnet[0]);
  const bool present = held & target;
  game.success = false;
  switch (game.operation) {
    case kSweep:
      if (routed) game.known |= batch.subnet[game.target];
      game.success = routed;
      return kUnseen;
    case kScan:
      game.success = true;
      if (!routed) return kUnseen;
      game.seen[game.target] = open_ports(batch, game, game.target);
      return kScanned;
    case kExploit:
      return routed ? exploit(batch, game) : kUnseen;
    case kEscalate:
      if (!present) return kUnseen;
      game.files |= target & ~game.root;
      game.root |= target;
      game.known |= batch.reveals[game.target];
      game.subnets |= batch.first[game.target];
      game.found |= game.target == kOpServer;
      game.success = true;
      return kUnseen;
    case kImpact:
      game.success = present && game.found;
      game.down |= game.success && !game.immune;
      return kUnseen;
  }
  return kUnseen;
}

void monitor(const Cage2Batch& batch, Cage2Game& game, int64_t action, bool found, int noisy, Trace trace, float* obs) {
  const int64_t own = batch.host_of[action];
  if (batch.restored[action]) game.belief[own] = kNo;
  if (batch.removed[action] && game.belief[own] != kNo) game.belief[own] = kUnknown;
  for (int h = 0; h < kHosts; h++) obs[h * kObsPerHost] = obs[h * kObsPerHost + 1] = 0.0f;
  if (noisy != kNobody) obs[noisy * kObsPerHost] = 1.0f;
  if (trace != kUnseen) {
    const int host = game.target;
    bool exploits = trace >= kKnocked;
    if (noisy == host)
      exploits &= __builtin_popcount(open_ports(batch, game, host)) < (trace == kKnocked ? 2 : 3);
    obs[host * kObsPerHost] = 1.0f;
    obs[host * kObsPerHost + 1] = exploits;
    if (exploits) game.belief[host] = kUser;
  }
  if (found) game.belief[own] = kPrivileged;
  for (int h = 0; h < kHosts; h++) {
    obs[h * kObsPerHost + 2] = game.belief[h] & 1;
    obs[h * kObsPerHost + 3] = game.belief[h] >> 1;
  }
}

double step(const Cage2Batch& batch, Cage2Game& game, int64_t action, float* obs) {
  const bool found = blue(batch, game, action);
  const int noisy = batch.has_green ? batch.green[int(draw(game, kGreenSlot) * 16)] : kNobody;
  if (batch.red == 1) b_line(batch, game);
  if (batch.red == 2) meander(batch, game);
  const Trace trace = operate(batch, game);
  monitor(batch, game, action, found, noisy, trace, obs);
  game.time++;
  const int64_t tenths =
      batch.tenths[game.root] + kDownTenths * game.down + kRestoreTenths * (batch.restored[action] != 0);
  return -tenths / 10.0;
}

}  // namespace

extern "C" void cage2_step(Cage2Batch* batch) {
  for (int64_t i = 0; i < batch->num_games; i++)
    batch->rewards[i] = step(*batch, batch->games[i], batch->actions[i], batch->obs + i * kHosts * kObsPerHost);
}

extern "C" int64_t cage2_game_bytes() { return sizeof(Cage2Game); }

}  // namespace ddppo
