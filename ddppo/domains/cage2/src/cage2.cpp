// Games of CAGE challenge 2, with the same results to the bit as ddppo/domains/cage2/{games,rules}.py.
//
// Those files make the tables and cite the source of each rule. Functions of the same name do the same there.
#include "cage2.hpp"

#include <cstring>

namespace ddppo {
namespace {

enum Operation : uint8_t { kSleep, kSweep, kScan, kExploit, kEscalate, kImpact };
enum Outcome : uint8_t { kFails, kLasts, kTraced, kRoot };
enum Trace { kUnseen, kScanned, kMissed, kCaught, kAnswered, kKnocked, kTraces };
enum Belief : uint8_t { kNo, kUnknown, kUser, kPrivileged };
// By belief: the observation of a host without activity.
constexpr float kObs[][kObsPerHost] = {{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}, {0, 0, 1, 1}};
enum Activity : uint8_t { kQuiet, kLikeScan, kLikeExploit };
enum Slot { kGreenSlot, kTargetSlot, kExploitSlot, kDetectionSlot, kSlots };
constexpr int kNobody = kHosts, kOpServer = 7, kUser0 = 8, kSsh = 7, kNumExploits = 8, kPorts = 12;
constexpr int kFirstHosts = 4, kFirstScan = 1, kServerExploit = 12, kLastPhase = 14;  // of B_line
constexpr int kRestoreTenths = 10, kDownTenths = 100;
constexpr uint16_t kEnterpriseHosts = 0b1110;  // without the Defender, which Meander leaves out

// SplitMix64, see "Random numbers by position" in rules.py.
double draw(const Cage2Game& game, Slot slot) {
  uint64_t z = game.key + (game.time * kSlots + slot + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return ((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

uint16_t bit(int host) { return host < kHosts ? 1 << host : 0; }

// Return the n-th host of a set.
int nth(uint16_t hosts, int n) {
  while (n-- > 0) hosts &= hosts - 1;
  return __builtin_ctz(hosts);
}

// A fixed sequence of phases, with the phase to go back to after a failure.
void b_line(const Cage2Batch& batch, Cage2Game& game) {
  if (game.time == 0) game.first = draw(game, kTargetSlot) * kFirstHosts;
  game.phase = !game.success ? batch.after_failure[game.phase] : game.phase < kLastPhase ? game.phase + 1 : kLastPhase;
  // Its first scan of Op_Server0 found nothing: B_line begins again with the scan of its first host.
  if (game.phase == kServerExploit && !game.seen[kOpServer]) game.phase = kFirstScan;
  game.operation = batch.operations[game.phase];
  game.target = batch.targets[game.phase * kFirstHosts + game.first];
}

// Correct Meander's knowledge after its last operation: `_update_knowledge` of rules.py.
void learn(const Cage2Batch& batch, Cage2Game& game) {
  const uint16_t target = bit(game.target);
  if (game.success) {
    if (game.operation == kExploit) game.entered |= target;
    return;
  }
  // A failure: Red forgets the target. After a failed exploit it also forgets its sessions on all operational hosts,
  // or on all enterprise hosts if it has none there.
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
  // The first kind of operation that has a candidate, on a random one of its candidates.
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
      // Noted as done before it is known to succeed; `learn` corrects it.
      choice.tried |= bit(game.target);
      return;
    }
}

uint16_t open_ports(const Cage2Batch& batch, const Cage2Game& game, int host) {
  return batch.open[host] | game.decoys[host];
}

struct BlueResult {
  bool found;     // files, by Analyse
  int new_decoy;  // the host on which a decoy was set, or kNobody
};

BlueResult blue(const Cage2Batch& batch, Cage2Game& game, int64_t action) {
  const uint16_t restored = batch.restored[action];
  const int64_t host = batch.host_of[action];
  BlueResult result = {bool(game.files & batch.analysed[action]), kNobody};
  // Remove and Restore end sessions of Red.
  game.traced &= ~(batch.removed[action] | restored);
  game.lasting &= ~restored;
  game.root &= ~batch.freed[action];
  game.files &= ~restored;
  if (restored) game.decoys[host] = 0;
  // A Restore of Op_Server0 starts OTService again.
  if (restored == bit(kOpServer)) {
    game.down = false;
    game.immune |= batch.has_quirk != 0;
  }
  // A decoy opens its port, if the ports that it checks are free.
  if (batch.opened[action] && !(open_ports(batch, game, host) & batch.checked[action])) {
    game.decoys[host] |= batch.opened[action];
    result.new_decoy = host;
  }
  return result;
}

Trace exploit(const Cage2Batch& batch, Cage2Game& game) {
  const int host = game.target;
  // 1. Red chooses an exploit by the ports that it saw, which decoys may have opened or closed since.
  const uint16_t seen = game.seen[host];
  const int64_t others = batch.num_exploits[seen] - 1;
  if (others < 0) return kUnseen;
  const double u = draw(game, kExploitSlot);
  const int place =
      u < batch.preferred || others < 1 ? 0 : 1 + int((u - batch.preferred) / (1 - batch.preferred) * others);
  const int chosen = batch.nth_exploit[seen * kNumExploits + place];
  const uint16_t port = batch.exploit_port[chosen];
  // 2. An exploit of a decoy's port fails.
  const bool is_real = batch.open[host] & port;
  const uint8_t outcome = is_real ? batch.outcome[host * kNumExploits + chosen] : uint8_t(kFails);
  const bool detected = draw(game, kDetectionSlot) < batch.detected;
  // 3. The new session, and files that Analyse can find.
  if (outcome == kRoot) game.root |= bit(host);
  if (outcome == kLasts || (outcome == kTraced && !detected)) game.lasting |= bit(host);
  if (outcome == kTraced && detected) game.traced |= bit(host);
  if (outcome != kFails && chosen != kSsh) game.files |= bit(host);
  game.success = outcome != kFails;
  // 4. The trace that the monitor sees.
  if (!(open_ports(batch, game, host) & port)) return kUnseen;
  if (chosen == kSsh) return kKnocked;
  if (!is_real) return kCaught;
  return !game.success ? kUnseen : detected ? kAnswered : kMissed;
}

// Perform Red's operation; return the trace that it leaves on its target.
Trace operate(const Cage2Batch& batch, Cage2Game& game) {
  const uint16_t held = game.traced | game.lasting | game.root, target = bit(game.target);
  // The operational subnet is reached from the enterprise subnet only: Red needs a session there.
  const bool routed = !(batch.subnet[game.target] & batch.subnet[kOpServer]) || (held & batch.subnet[0]);
  const bool present = held & target;
  game.success = false;
  switch (game.operation) {
    case kSweep:
      if (routed) game.known |= batch.subnet[game.target];
      game.success = routed;
      return kUnseen;
    case kScan:
      game.success = true;  // even without a route, where it sees nothing
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

// Return what the monitor takes the connections to a host in this step for.
uint8_t activity(const Cage2Batch& batch, const Cage2Game& game, int host, bool is_noisy, bool is_decoy, Trace trace) {
  const int num_open = __builtin_popcount(open_ports(batch, game, host));
  return batch.activity[((is_noisy * 2 + is_decoy) * kTraces + trace) * (kPorts + 1) + num_open];
}

// Update Blue's assessments and observation.
void monitor(const Cage2Batch& batch, Cage2Game& game, int64_t action, BlueResult result, int noisy, Trace trace,
             float* obs) {
  const auto [found, new_decoy] = result;
  // 1. Blue's own action: a Restore clears the assessment of its host, a Remove lowers it.
  const int64_t own = batch.host_of[action];
  if (batch.restored[action]) game.belief[own] = kNo;
  if (batch.removed[action] && game.belief[own] != kNo) game.belief[own] = kUnknown;
  // 2. Activity of this step on the target of Red.
  const bool is_seen = trace != kUnseen;
  const int target = game.target;
  const uint8_t on_target =
      is_seen ? activity(batch, game, target, noisy == target, new_decoy == target, trace) : uint8_t(kQuiet);
  if (on_target == kLikeExploit) game.belief[target] = kUser;
  // 3. Files that Analyse found.
  if (found) game.belief[own] = kPrivileged;
  // 4. The observation: assessments, and activity on the host that Green scanned and on the target.
  for (int h = 0; h < kHosts; h++) std::memcpy(obs + h * kObsPerHost, kObs[game.belief[h]], sizeof kObs[0]);
  if (noisy != kNobody)
    obs[noisy * kObsPerHost] = activity(batch, game, noisy, true, new_decoy == noisy, kUnseen) != kQuiet;
  if (is_seen) {
    obs[target * kObsPerHost] = on_target != kQuiet;
    obs[target * kObsPerHost + 1] = on_target == kLikeExploit;
  }
}

double step(const Cage2Batch& batch, Cage2Game& game, int64_t action, float* obs) {
  // 1. Blue acts.
  const BlueResult result = blue(batch, game, action);
  // 2. Green may scan a host.
  const int noisy = batch.has_green ? batch.green[int(draw(game, kGreenSlot) * 16)] : kNobody;
  // 3. Red chooses an operation, and performs it.
  if (batch.red == 1) b_line(batch, game);
  if (batch.red == 2) meander(batch, game);
  const Trace trace = operate(batch, game);
  // 4. Blue observes.
  monitor(batch, game, action, result, noisy, trace, obs);
  // 5. The reward: hosts with Red's root, OTService, and Restore (docs/cage2.md, "Reward").
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
