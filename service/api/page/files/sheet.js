// The contact sheet: every image that was sent, with its label and how sure it is.

import { $, element, percent, save } from "./dom.js";

const all = []; // {item, files, url, name, predictions, timing, batch, error}
let done = 0;
let onPick;

const RING = 2 * Math.PI * 15;

function ring() {
  const make = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  const svg = make("svg");
  svg.setAttribute("viewBox", "0 0 36 36");
  svg.setAttribute("aria-hidden", "true");
  for (const kind of ["rest", "share"]) {
    const circle = make("circle");
    for (const [key, value] of Object.entries({ cx: 18, cy: 18, r: 15, class: kind })) circle.setAttribute(key, value);
    svg.append(circle);
  }
  svg.lastChild.setAttribute("stroke-dasharray", `0 ${RING}`);
  return svg;
}

/** A place for an image, or the files of a clip, that is being sent, whatever is answered first. */
export function add(files) {
  const [file] = files;
  const name = files.length > 1 ? `${file.name} and ${files.length - 1} more` : file.name;
  const item = element("li", "", "tile");
  const button = element("button");
  button.type = "button";
  const url = URL.createObjectURL(file);
  const isImage = file.type.startsWith("image/");
  const image = isImage ? element("img") : element("span", name, "tile-name"); // of a video or an archive
  if (isImage) Object.assign(image, { src: url, alt: "", decoding: "async", loading: "lazy" });
  // The browser shows no TIFF, and most no HEIC: the name is there instead.
  image.addEventListener("error", () => image.replaceWith(element("span", name, "tile-name")));
  button.append(image, ring(), element("span", "…", "tile-label"));
  button.setAttribute("aria-label", `${name}: waiting`);
  item.append(button);
  const answer = { item, files, url, name };
  // On the tile: until it is drawn, its button is not there to be hit.
  item.addEventListener("click", () => onPick(answer));
  all.push(answer);
  $("tiles").prepend(item);
  progress();
  return answer;
}

/** Forget what was answered: it is asked again. */
export function reset() {
  for (const answer of all) for (const key of ["predictions", "timing", "batch", "error"]) delete answer[key];
  done = 0;
  progress();
  return [...all];
}

/** Those that failed by this error, which are to be asked again. */
export function failed(error) {
  const found = all.filter((answer) => answer.error === error && answer.item.isConnected);
  done -= found.length;
  progress();
  return found;
}

/** Show that an image was answered, or failed. */
export function settle(answer) {
  if (!answer.item.isConnected) return; // removed meanwhile
  const [best] = answer.predictions ?? [];
  const text = best ? `${best.label}, ${percent(best.probability)}` : answer.error;
  const [button] = answer.item.children;
  button.setAttribute("aria-label", `${answer.name}: ${text}`);
  button.title = `${answer.name}: ${text}`;
  button.querySelector(".tile-label").textContent = best?.label ?? "no answer";
  button.querySelector(".share").setAttribute("stroke-dasharray", `${(best?.probability ?? 0) * RING} ${RING}`);
  answer.item.classList.toggle("failed", !best);
  done += 1;
  progress();
}

/** Mark the tile whose answer is on the stage. */
export function mark(answer) {
  for (const { item } of all) item.classList.toggle("shown", item === answer.item);
}

let due = false;
// Once a frame: two hundred answers sort and filter the sheet few times.
function progress() {
  const bar = $("progress");
  bar.max = Math.max(1, all.length);
  bar.value = done;
  bar.hidden = done === all.length;
  $("sheet").hidden = all.length < 2;
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    arrange();
  });
}

const sureness = ({ predictions }) => predictions?.[0].probability ?? 0;

function shown() {
  const wanted = $("by-label").value.toLowerCase();
  const least = Number($("by-share").value) / 100;
  return all.filter(({ predictions }) => {
    const [best] = predictions ?? [];
    return best
      ? best.label.toLowerCase().includes(wanted) && best.probability >= least
      : wanted === "" && least === 0;
  });
}

function arrange() {
  const visible = new Set(shown());
  for (const answer of all) answer.item.hidden = !visible.has(answer);
  $("count").textContent =
    visible.size === all.length ? (done === all.length ? `${done}` : `${done} of ${all.length}`) : `${visible.size} of ${all.length}`;
  const wanted = $("order").value;
  const order = wanted === "sent" ? [...all] : [...all].reverse();
  if (wanted === "unsure") order.sort((one, other) => sureness(one) - sureness(other));
  const tiles = $("tiles").children;
  if (order.some(({ item }, i) => tiles[i] !== item)) $("tiles").append(...order.map(({ item }) => item));
}

function clear() {
  for (const { item, url } of all.splice(0)) {
    URL.revokeObjectURL(url);
    item.remove();
  }
  done = 0;
  $("errors").replaceChildren();
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
  const rows = shown().flatMap(({ name, predictions, error }) =>
    predictions
      ? predictions.map(({ label, probability }, place) => [name, place + 1, label, probability, ""])
      : [[name, "", "", "", error ?? ""]],
  );
  const head = ["file", "place", "label", "probability", "error"];
  return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n");
}

function asJson() {
  const kept = shown().map(({ name, predictions, timing, error }) => ({ name, predictions, timing_ms: timing, error }));
  return JSON.stringify(kept, null, 2);
}

/** Connect the filters, the order and the buttons; call `pick` with a tile's answer. */
export function start(pick) {
  onPick = pick;
  for (const id of ["by-label", "by-share", "order"]) $(id).addEventListener("input", arrange);
  $("clear").addEventListener("click", clear);
  $("csv").addEventListener("click", () => save("answers.csv", new Blob([asCsv()], { type: "text/csv" })));
  $("json").addEventListener("click", () => save("answers.json", new Blob([asJson()], { type: "application/json" })));
}
