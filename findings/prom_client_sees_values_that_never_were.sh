#!/usr/bin/env bash
# prom-client 15.1.3: if a few values occur often, the quantiles of a Summary are numbers that were
# never observed, far from the right ones. Of batches of which 90% have one image, the median is
# 4.1.
#
# A Summary of Prometheus' client for Node.js takes its quantiles from a t-digest, which keeps means
# of neighbouring values and goes from one mean to the next in a straight line. All equal values
# become one mean, whatever their number, so the line goes over most of the distribution. Durations
# with all their digits are not concerned. Sizes of batches, lengths of queues, numbers of retries
# and rounded durations are. Count and sum are right. The README says that a Summary calculates
# percentiles of observed values.
#
# 1000 values in a random order, their quantiles 0.5, 0.75, 0.9, 0.95 and 0.99. Seen:
#   900 batches of 1, 100 of 32: 4.1 19.6 28.9 32 32, observed 1 1 1 32 32
#   600 empty queues, 400 of 100: 40 90 100 100 100, observed 0 100 100 100 100
#   990 ms of 1, 10 of 1000: 11 510.5 810.2 910.1 990, observed 1 1 1 1 1
#   all different, from 0.001 to 1: 0.5 0.75 0.9 0.95 0.99, observed 0.5 0.75 0.9 0.95 0.99
# Expected: the numbers that were observed, or close to them. Exits with an error if this changes.
# Needs Node.js 18 or newer with npm instead of Python.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . prom-client@15.1.3 tdigest@0.1.3 >log
cat >"$folder/run.js" <<'JS'
const assert = require("node:assert");
const client = require("prom-client");

const QUANTILES = [0.5, 0.75, 0.9, 0.95, 0.99];

function values(...groups) {
  return groups.flatMap(([count, value]) => Array(count).fill(value));
}

const CASES = {
  "900 batches of 1, 100 of 32": [values([900, 1], [100, 32]), 3],
  "600 empty queues, 400 of 100": [values([600, 0], [400, 100]), 30],
  "990 ms of 1, 10 of 1000": [values([990, 1], [10, 1000]), 9],
  "all different, from 0.001 to 1": [Array.from({ length: 1000 }, (_, i) => (i + 1) / 1000), 0],
};

function shuffled(list) {
  const result = [...list];
  let state = 1;
  for (let last = result.length - 1; last > 0; last--) {
    state = (state * 48271) % 2147483647;
    const other = state % (last + 1);
    [result[last], result[other]] = [result[other], result[last]];
  }
  return result;
}

(async () => {
  for (const [index, [name, [list, error]]] of Object.entries(CASES).entries()) {
    const summary = new client.Summary({ name: `s${index}`, help: "-", percentiles: QUANTILES });
    for (const value of shuffled(list)) summary.observe(value);
    const samples = (await summary.get()).values.filter((each) => each.labels.quantile);
    const found = samples.map((each) => each.value);
    const sorted = [...list].sort((a, b) => a - b);
    const observed = QUANTILES.map((each) => sorted[Math.ceil(each * list.length) - 1]);
    const round = (value) => Number(value.toFixed(error ? 1 : 2));
    console.log(`${name}: ${found.map(round).join(" ")}, observed ${observed.join(" ")}`);
    assert.strictEqual(found.length, QUANTILES.length);
    if (error) assert(found[0] - observed[0] > error, "the median has changed");
    else found.forEach((value, i) => assert(Math.abs(value - observed[i]) < 0.005));
  }
})();
JS
node "$folder/run.js"
