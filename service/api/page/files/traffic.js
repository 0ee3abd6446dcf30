// The traffic of the chosen model, read from /metrics once a second while the page is visible.

import { ask } from "./ask.js";
import { $ } from "./dom.js";

const WINDOW = 60; // seconds in the chart
const EVERY_MS = 1000;
const HEIGHT = 24; // of the chart's viewBox
const WIDTH = 240;

/** The samples of one metric in Prometheus' text format: [{labels, value}]. */
function samples(text, name) {
  const found = [];
  for (const line of text.split("\n")) {
    const match = line.match(/^(\w+)(?:\{(.*)\})? (\S+)/);
    if (match?.[1] !== name) continue;
    const labels = Object.fromEntries(
      [...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, value]) => [key, value]),
    );
    found.push({ labels, value: Number(match[3]) });
  }
  return found;
}

const decimals = (rate) => rate.toFixed(rate < 10 ? 1 : 0);

/** Counts up to each bound of a model's histogram: [[bound, count]], ascending. */
function buckets(text, name, model) {
  const upTo = new Map();
  for (const { labels, value } of samples(text, `${name}_bucket`)) {
    if (labels.model !== model) continue;
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    upTo.set(bound, (upTo.get(bound) ?? 0) + value);
  }
  return [...upTo].sort(([one], [other]) => one - other);
}

/** The milliseconds that a share of the requests since `before` kept, interpolated in its bucket. */
function quantile(share, now, before) {
  const counts = now.map(([bound, count], i) => [bound, count - (before[i]?.[1] ?? 0)]);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return "–";
  const place = counts.findIndex(([, count]) => count >= share * total);
  const [bound, count] = counts[place];
  const [low, below] = counts[place - 1] ?? [0, 0];
  if (!Number.isFinite(bound)) return `> ${low} s`;
  const ms = 1000 * (low + ((bound - low) * (share * total - below)) / (count - below));
  return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
}

/** Say that the metrics have a port of their own, and link to it. */
function showElsewhere(port) {
  $("elsewhere").hidden = false;
  $("strip").hidden = document.querySelector(".numbers").hidden = true;
  const there = new URL("/metrics", location.origin);
  [there.protocol, there.port] = ["http:", port];
  $("metrics-link").hidden = !port;
  for (const link of document.querySelectorAll(".metrics")) link.href = there.href;
}

/** Show the traffic of what `model` names. */
export function watchTraffic(model) {
  const rates = [];
  let history = []; // of durations, over the chart's window
  let last = null;
  let of = "";

  function show(text, seconds) {
    const sum = (name) =>
      samples(text, name).reduce((all, { labels, value }) => all + (labels.model === model() ? value : 0), 0);
    const images = sum("convoy_images_total");
    const requests = sum("convoy_requests_total");
    if (of !== model()) [of, last, history, rates.length] = [model(), null, [], 0];
    // A counter that fell belongs to a restarted server.
    const same = last && images >= last.images && requests >= last.requests;
    const since = same ? last : { images, requests, seconds: -Infinity };
    const rate = (images - since.images) / (seconds - since.seconds);
    $("requests").textContent = decimals((requests - since.requests) / (seconds - since.seconds));
    last = { images, requests, seconds };
    rates.push(rate);
    if (rates.length > WINDOW) rates.shift();
    $("rate").textContent = decimals(rate);
    const most = Math.max(1, ...rates);
    const step = WIDTH / (WINDOW - 1);
    const begin = WIDTH - step * (rates.length - 1);
    const y = (value) => HEIGHT - 2 - (value / most) * (HEIGHT - 4);
    const points = rates.map((value, i) => `${begin + i * step},${y(value)}`).join(" ");
    $("rates").querySelector("polyline").setAttribute("points", points);
    showSizes(buckets(text, "convoy_batch_size", model()).filter(([size]) => Number.isFinite(size)));
    history.push(buckets(text, "convoy_request_duration_seconds", model()));
    if (history.length > WINDOW) history.shift();
    $("p50").textContent = quantile(0.5, history.at(-1), history[0]);
    $("p99").textContent = quantile(0.99, history.at(-1), history[0]);
    $("depth").textContent = sum("convoy_queue_depth");
    const gpus = samples(text, "nv_gpu_utilization");
    $("gpu").parentElement.hidden = !gpus.length;
    $("gpu").textContent = gpus.map(({ value }) => `${(100 * value).toFixed(0)} %`).join(", ");
  }

  function showSizes(upTo) {
    const sizes = upTo.map(([size, total], i) => ({ size, count: total - (upTo[i - 1]?.[1] ?? 0) }));
    const most = Math.log1p(Math.max(1, ...sizes.map(({ count }) => count)));
    const total = sizes.reduce((all, { count }) => all + count, 0);
    $("batches").textContent = total;
    $("batches").closest("figure").hidden = !total;
    $("sizes").replaceChildren(
      ...sizes.map(({ size, count }) => {
        const item = document.createElement("li");
        const column = document.createElement("i");
        column.style.height = `${(Math.log1p(count) / most) * 4}rem`;
        item.append(column, String(size));
        item.title = `${count} batches of ${size}`;
        return item;
      }),
    );
  }

  async function poll() {
    if (!document.hidden && model()) {
      try {
        const response = await ask("metrics");
        if (response.ok) show(await response.text(), performance.now() / 1000);
        if (response.status === 404) {
          showElsewhere(response.headers.get("metrics-port"));
          return;
        }
      } catch {
        $("rate").textContent = "?"; // the server does not answer; try again
      }
    }
    setTimeout(poll, EVERY_MS);
  }
  poll();
}
