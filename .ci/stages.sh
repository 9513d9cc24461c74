# shellcheck shell=bash
# What .ci/run and .ci/full have in common: stages, environments, and what they install.
# Expects $work_dir, a folder for environments and results.

exec </dev/null
export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_QUIET=1
export HF_HUB_OFFLINE=1
# The tools that are to be tested must come from the new environments alone.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
# Without byte code on disk, each process that runs tests would compile all of them anew.
unset PYTHONDONTWRITEBYTECODE

python="${PYTHON:-python3}"
dev="$work_dir/dev"
# A line for each stage: how it ended, seconds, name. And what pytest says of its tests.
results="$work_dir/results"
junit="$work_dir/junit"
mkdir -p "$work_dir"
touch "$results"
# Tests that fail once and then pass are noted there.
export RERUNS_FILE="$work_dir/reruns"

# stage NAME COMMAND...: run the command, note how it ended, and go on.
stage() {
  local name="$1" started="$SECONDS" ending=ok
  shift
  # Which environment it runs in is told by the name.
  if [ "$1" = run_in ]; then
    printf '\n==> %s: %s\n' "$name" "${*:3}"
  else
    printf '\n==> %s\n' "$name"
  fi
  PYTEST_ADDOPTS="--junitxml=$junit/${name//[^A-Za-z0-9]/-}.xml --durations=10" "$@" || ending=FAILED
  printf -- '--- %s: %s (%d s)\n' "$name" "$ending" "$((SECONDS - started))"
  printf '%s\t%d\t%s\n' "$ending" "$((SECONDS - started))" "$name" >>"$results"
}

make_environment() {
  "$python" -m venv "$1"
}

# In a subshell with the environment active, as a reader of README.md would have it.
run_in() {
  local environment="$1"
  shift
  (
    # shellcheck disable=SC1091
    source "$environment/bin/activate"
    "$@"
  )
}

# The tests of the HTML report run in a real browser, where there is one.
install_browser() {
  if command -v chromium >/dev/null || [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    return
  fi
  apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null
}

# torchvision's wheel breaks `import lightning` beside a CPU-only torch, so it gets a folder of its
# own, for the tests of its models alone.
install_torchvision() {
  run_in "$dev" pip install --no-deps -c constraints.txt --target "$work_dir/tv" torchvision pillow timm safetensors
}

# Optional extras, which the other tests must not need.
install_extras() {
  run_in "$dev" pip install --no-deps -c constraints.txt --target "$work_dir/extras" \
    matplotlib contourpy cycler fonttools kiwisolver pillow pyparsing python-dateutil \
    torchdiffeq scipy ray msgpack protobuf \
    stable-baselines3 gymnasium cloudpickle
}

# The tests that need torchvision, and those of the same files that do not.
VISION_TESTS=(tests/unit/cost/test_op_coverage.py tests/e2e/test_workload_models.py)
with_torchvision() {
  PYTHONPATH="$work_dir/tv" run_in "$dev" python -m pytest -q "$@"
}

# with_extras ARGUMENTS...: pytest where all extras are installed.
with_extras() {
  PYTHONPATH="$work_dir/extras" RAY_USAGE_STATS_ENABLED=0 run_in "$dev" python -m pytest -q "$@"
}

# README.md's two set-up commands, each in parts: installation, and what follows.
mapfile -t setup_commands < <(awk '/^```/ { inside = !inside; next } inside && /pip install/' README.md)
if [ "${#setup_commands[@]}" -ne 2 ]; then
  echo "README.md must hold exactly two set-up commands, not ${#setup_commands[@]}" >&2
  exit 1
fi
main_job="${setup_commands[0]#* && }"
set_up="${setup_commands[1]%% && *}" tests="${setup_commands[1]#* && }"
