#!/usr/bin/env bash
# Try ddppo with other versions of Python and torch than those of requirements.lock, as far as they can be had here.
#   bash tests/package/other_versions.sh [folder for the environments]
# For each Python of PATH and for the oldest torch: an environment, the wheel, W = 1 and 2. Says what it cannot try and why.
# TORCH_INDEX is where builds for CPUs are; a build that asks for CUDA's packages is gigabytes, and is not fetched.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$(mktemp -d)}
TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
run=(env=cartpole ppo.total_steps=4096 log.progress=none eval.final_episodes=2)
passed=() failed=() untried=()
mkdir -p "$folder"

try() {  # name, interpreter, what pip is to install as torch
  local name=$1 python=$2 torch=$3 venv="$folder/$1" log="$folder/$1.log"
  if ! command -v "$python" >/dev/null; then untried+=("$name: there is no $python on PATH"); return; fi
  rm -rf "$venv" "$folder/$name-"*
  if ! "$python" -m venv "$venv" >"$log" 2>&1; then untried+=("$name: $python -m venv failed, see $log"); return; fi
  if ! "$venv/bin/pip" install --index-url "$TORCH_INDEX" --only-binary :all: "$torch" >>"$log" 2>&1; then
    untried+=("$name: $TORCH_INDEX offers no $torch, or is out of reach, see $log"); return
  fi
  if "$venv/bin/pip" install "$checkout" >>"$log" 2>&1 && "$venv/bin/ddppo-train" --version &&
    (cd "$folder" && for w in 1 2; do
      PYTHONWARNINGS=default "$venv/bin/ddppo-train" "${run[@]}" dist.world_size=$w hydra.run.dir="$folder/$name-$w" >>"$log" 2>&1 || exit 1
    done); then passed+=("$name"); else failed+=("$name: see $log"); fi
}

try python3.11-torch2.6 python3.11 'torch==2.6.*'
for version in 3.12 3.13 3.14; do try "python$version" "python$version" 'torch>=2.6'; done
((${#untried[@]})) && printf 'not tried: %s\n' "${untried[@]}" || true
((${#failed[@]})) && printf 'failed: %s\n' "${failed[@]}" || true
((${#passed[@]})) && printf 'passed: %s\n' "${passed[@]}" || true
((${#failed[@]} == 0))
