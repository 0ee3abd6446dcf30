// The traffic of the chosen model, of which the page learns the counts once a second.

import { $ } from "./dom.js";

const WINDOW = 60; // seconds in the chart
const HEIGHT = 24; // of the chart's viewBox
const WIDTH = 240;

const decimals = (rate) => rate.toFixed(rate < 10 ? 1 : 0);

/** The milliseconds that a share of the requests since `before` kept, interpolated in its bucket. */
function quantile(share, now, before) {
  const counts = now.map(([bound, count], i) => [bound, count - (before[i]?.[1] ?? 0)]);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return "–";
  const place = counts.findIndex(([, count]) => count >= share * total);
  const [bound, count] = counts[place];
  const [low, below] = counts[place - 1] ?? [0, 0];
  if (bound === null) return `> ${low} s`;
  const ms = 1000 * (low + ((bound - low) * (share * total - below)) / (count - below));
  return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
}

/** Say that the metrics have a port of their own, and link to it. */
function showElsewhere(port) {
  $("elsewhere").hidden = false;
  $("strip").hidden = document.querySelector(".numbers").hidden = true;
  const there = new URL("/metrics", location.origin);
  [there.protocol, there.port] = ["http:", port ?? ""];
  $("metrics-link").hidden = !port;
  for (const link of document.querySelectorAll(".metrics")) link.href = there.href;
}

function showSizes(sizes) {
  const most = Math.log1p(Math.max(1, ...sizes));
  const total = sizes.reduce((all, count) => all + count, 0);
  $("batches").textContent = total;
  $("batches").closest("figure").hidden = !total;
  $("sizes").replaceChildren(
    ...sizes.map((count, i) => {
      const item = document.createElement("li");
      const column = document.createElement("i");
      column.style.height = `${(Math.log1p(count) / most) * 4}rem`;
      item.append(column, String(i + 1));
      item.title = `${count} batches of ${i + 1}`;
      return item;
    }),
  );
}

/** Returns a function that shows the traffic of a model, which is null if the server has none to tell. */
export function trafficView() {
  const rates = [];
  let history = []; // of durations, over the chart's window
  let last = null;
  let of = "";

  function show({ images, requests, waiting, sizes, durations, gpus }, seconds) {
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
    showSizes(sizes);
    history.push(durations);
    if (history.length > WINDOW) history.shift();
    $("p50").textContent = quantile(0.5, history.at(-1), history[0]);
    $("p99").textContent = quantile(0.99, history.at(-1), history[0]);
    $("depth").textContent = waiting;
    $("gpu").parentElement.hidden = !gpus.length;
    $("gpu").textContent = gpus.map((share) => `${(100 * share).toFixed(0)} %`).join(", ");
  }

  return (model, traffic) => {
    if (of !== model) [of, last, history, rates.length] = [model, null, [], 0];
    if (!traffic) $("rate").textContent = "?"; // the server does not answer
    else if (traffic.counts) show(traffic.counts, performance.now() / 1000);
    else showElsewhere(traffic.metrics_port);
  };
}
