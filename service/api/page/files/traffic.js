// The traffic, read from /metrics once a second while the page is visible.

import { ask } from "./ask.js";

const WINDOW = 60; // seconds in the chart
const EVERY_MS = 1000;
const HEIGHT = 60; // of the chart's viewBox
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

/** Batches of each size, of all models; Prometheus' buckets are cumulative. */
function batchSizes(text) {
  const upTo = new Map();
  for (const { labels, value } of samples(text, "convoy_batch_size_bucket")) {
    if (labels.le !== "+Inf") upTo.set(Number(labels.le), (upTo.get(Number(labels.le)) ?? 0) + value);
  }
  let before = 0;
  return [...upTo]
    .sort(([one], [other]) => one - other)
    .map(([size, total]) => {
      const count = total - before;
      before = total;
      return { size, count };
    });
}

/** Requests by duration, of all models: [bound in seconds, requests up to it]. */
function durations(text) {
  const upTo = new Map();
  for (const { labels, value } of samples(text, "convoy_request_duration_seconds_bucket")) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    upTo.set(bound, (upTo.get(bound) ?? 0) + value);
  }
  return [...upTo].sort(([one], [other]) => one - other);
}

/** The bound in milliseconds that a share of the requests since `before` kept, as text. */
function quantile(share, now, before) {
  const counts = now.map(([bound, count], i) => [bound, count - (before[i]?.[1] ?? 0)]);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return "–";
  const [bound] = counts.find(([, count]) => count >= share * total);
  return Number.isFinite(bound) ? `≤ ${1000 * bound} ms` : "> 10 s";
}

const decimals = (rate) => rate.toFixed(rate < 10 ? 1 : 0);

const sum = (text, name) => samples(text, name).reduce((all, { value }) => all + value, 0);

/** Update the page's elements, which `find` has by id, once a second. */
export function watchTraffic(find) {
  const show = {
    rate: find("rate"),
    line: find("rates").querySelector("polyline"),
    most: find("most"),
    batches: find("batches"),
    sizes: find("sizes"),
  };
  const rates = [];
  const history = []; // of durations, over the chart's window
  let last = null;

  function showRate(text, seconds) {
    const images = sum(text, "convoy_images_total");
    // A counter that fell belongs to a restarted server.
    const requests = sum(text, "convoy_requests_total");
    const same = last && images >= last.images && requests >= last.requests;
    const since = same ? last : { images, requests, seconds: -Infinity };
    const rate = (images - since.images) / (seconds - since.seconds);
    find("requests").textContent = decimals((requests - since.requests) / (seconds - since.seconds));
    last = { images, requests, seconds };
    rates.push(rate);
    if (rates.length > WINDOW) rates.shift();
    const most = Math.max(1, ...rates);
    show.rate.textContent = decimals(rate);
    show.most.textContent = `peak ${decimals(most)}`;
    const step = WIDTH / (WINDOW - 1);
    const begin = WIDTH - step * (rates.length - 1);
    show.line.setAttribute(
      "points",
      rates.map((value, i) => `${begin + i * step},${HEIGHT - 2 - (value / most) * (HEIGHT - 4)}`).join(" "),
    );
    showSizes(batchSizes(text));
    history.push(durations(text));
    if (history.length > WINDOW) history.shift();
    find("p50").textContent = quantile(0.5, history.at(-1), history[0]);
    find("p99").textContent = quantile(0.99, history.at(-1), history[0]);
    find("depth").textContent = sum(text, "convoy_queue_depth");
    const gpus = samples(text, "nv_gpu_utilization");
    find("gpu").parentElement.hidden = !gpus.length;
    find("gpu").textContent = gpus.map(({ value }) => `${(100 * value).toFixed(0)} %`).join(", ");
  }

  function showSizes(sizes) {
    const most = Math.max(1, ...sizes.map(({ count }) => count));
    show.batches.textContent = sizes.reduce((sum, { count }) => sum + count, 0);
    show.sizes.replaceChildren(
      ...sizes.map(({ size, count }) => {
        const item = document.createElement("li");
        const column = document.createElement("i");
        column.style.height = `${(count / most) * 5}rem`;
        item.append(column, String(size));
        item.title = `${count} batches of ${size}`;
        item.setAttribute("aria-label", item.title);
        return item;
      }),
    );
  }

  async function poll() {
    if (!document.hidden) {
      try {
        const response = await ask("metrics");
        if (response.ok) showRate(await response.text(), performance.now() / 1000);
        if (response.status === 404) {
          // The metrics have their own port, which the page cannot reach.
          document.getElementById("traffic").closest("section").hidden = true;
          return;
        }
      } catch {
        show.rate.textContent = "?"; // the server does not answer; try again
      }
    }
    setTimeout(poll, EVERY_MS);
  }
  poll();
}
