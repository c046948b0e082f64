#!/usr/bin/env bash
# CI job after retraining: fit the new model's map, check on held-out rows that it is
# within the limit, and only then promote it to production.
#
#   CALIBRD_URL=... CALIBRD_API_KEY=... bash examples/ci_gate.sh
set -euo pipefail
cd "$(dirname "$0")/data"
name=${NAME:-fashion-ci}
limit=${LIMIT:-0.04}
model=sha256:$(sha256sum fashion_ce__cal.npz | cut -d' ' -f1) # in practice, hash the checkpoint

made=$(calibrd fit fashion_ce__cal.npz --name "$name" --method smart --model "$model" --json)
# by number, because an alias may move before the promotion
version=$(python -c 'import json, sys; print(json.load(sys.stdin)["version"]["number"])' <<<"$made")

verdict=0
calibrd gate fashion_ce__test.npz --map "$name@$version" --model "$model" \
  --max-calibration-error "$limit" || verdict=$?
case $verdict in
  0) ;;
  1) echo "not promoted: the limit is exceeded" && exit 1 ;;
  2) echo "not promoted: more labelled rows are needed to decide" && exit 1 ;;
  *) exit "$verdict" ;;
esac

calibrd promote "$name" "$version" --reason "passed the gate at $limit"
