// The answers: one item per image in the order sent, kept, filtered and downloaded.

import { describe } from "./api.js";

const PHASES = ["receive", "decode", "queue", "compute", "respond"];

const $ = (id) => document.getElementById(id);
const all = []; // {item, name, predictions, timing} or {item, name, error}
let done = 0;

export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

export const percent = (probability) => `${(100 * probability).toFixed(1)} %`;

/** An item for an image that is being sent; it has its place at once, whatever is answered first. */
export function add(file) {
  const item = $("answer").content.firstElementChild.cloneNode(true);
  const image = item.querySelector("img");
  image.src = URL.createObjectURL(file);
  image.alt = file.name;
  item.querySelector(".name").textContent = file.name;
  item.querySelector(".time").textContent = "waiting";
  const answer = { item, name: file.name };
  all.push(answer);
  $("answers").prepend(item);
  $("none").hidden = true;
  progress();
  return answer;
}

/** Show what the server answered. */
export function show(answer, path, body) {
  const { item } = answer;
  const { predictions } = body.results[0];
  Object.assign(answer, { predictions, timing: body.timing_ms });
  const [best] = predictions;
  item.querySelector("h3").textContent = best.label;
  item.querySelector(".share").textContent = percent(best.probability);
  item.querySelector(".bars").append(...predictions.map(bar));
  showTiming(item, body.timing_ms);
  describe(answer.name, path);
  $("latest").textContent = `${answer.name}: ${best.label}, ${percent(best.probability)}`;
  settle(answer);
}

/** Add to the list of errors. */
export function complain(text) {
  $("errors").append(element("li", text));
}

/** Show an error: in the image's item, and in the list of errors. */
export function fail(answer, text) {
  answer.error = text;
  answer.item.querySelector("h3").textContent = "no answer";
  answer.item.querySelector(".time").textContent = text;
  answer.item.classList.add("failed");
  complain(`${answer.name}: ${text}`);
  settle(answer);
}

function settle({ item }) {
  if (!item.isConnected) return; // removed meanwhile
  done += 1;
  progress();
  filter();
}

function progress() {
  const bar = $("progress");
  bar.max = all.length;
  bar.value = done;
  bar.hidden = done === all.length;
  $("count").textContent = done === all.length ? `${done}` : `${done} of ${all.length}`;
}

function bar({ label, probability }) {
  const item = element("li");
  const track = element("span", "", "track");
  const filled = element("div", "", "bar");
  filled.style.width = `${100 * probability}%`;
  track.append(filled);
  item.append(element("span", label, "label"), element("span", percent(probability), "value"), track);
  return item;
}

function showTiming(item, timing) {
  item.querySelector(".time").textContent =
    `${timing.total.toFixed(1)} ms, of which ${timing.compute.toFixed(1)} ms in the model`;
  const line = item.querySelector(".phases");
  const legend = item.querySelector(".legend");
  for (const phase of PHASES) {
    const part = element("span", "", phase);
    part.style.flexGrow = timing[phase];
    line.append(part);
    const entry = element("li");
    entry.append(element("i", "", phase), `${phase} ${timing[phase].toFixed(2)} ms`);
    legend.append(entry);
  }
  legend.append(element("li", `total ${timing.total.toFixed(2)} ms`));
  const entries = [...legend.children].map(({ textContent }) => textContent);
  line.setAttribute("aria-label", `Time spent: ${entries.join(", ")}`);
}

function filter() {
  const wanted = $("by-label").value.toLowerCase();
  const least = Number($("by-share").value) / 100;
  for (const { item, predictions } of all) {
    const [best] = predictions ?? [];
    item.hidden = best
      ? !best.label.toLowerCase().includes(wanted) || best.probability < least
      : wanted !== "" || least > 0;
  }
}

function clear() {
  for (const { item } of all.splice(0)) {
    URL.revokeObjectURL(item.querySelector("img").src);
    item.remove();
  }
  done = 0;
  $("errors").replaceChildren();
  $("none").hidden = false;
  progress();
}

// A spreadsheet runs a cell that begins so as a formula, which a file's name or a model's label must not
// be: an apostrophe, which it does not show, makes text of it.
const FORMULA = /^[\s=+\-@＝＋－＠]/;
const quoted = (cell) => {
  const text = String(cell);
  return `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
};

function asCsv() {
  const rows = all.flatMap(({ name, predictions, error }) =>
    predictions
      ? predictions.map(({ label, probability }, place) => [name, place + 1, label, probability, ""])
      : [[name, "", "", "", error ?? ""]],
  );
  const head = ["file", "place", "label", "probability", "error"];
  return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n");
}

function asJson() {
  return JSON.stringify(all.map(({ item, ...answer }) => answer), null, 2);
}

function save(name, type, text) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Connect the filters and buttons. */
export function start() {
  $("by-label").addEventListener("input", filter);
  $("by-share").addEventListener("input", filter);
  $("clear").addEventListener("click", clear);
  $("csv").addEventListener("click", () => save("answers.csv", "text/csv", asCsv()));
  $("json").addEventListener("click", () => save("answers.json", "application/json", asJson()));
}
