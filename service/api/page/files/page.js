// The page at /: sends images, shows the answers and the traffic.

import { ask, askForKey } from "./ask.js";
import { drawingPad } from "./pad.js";
import { watchTraffic } from "./traffic.js";

const TOP_K = 5;
const MOST_ANSWERS = 20; // older ones are removed, with their images
const PHASES = ["receive", "decode", "queue", "compute", "respond"];
const DIGITS = "digits";

const $ = (id) => document.getElementById(id);

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** The error message of an answer. */
async function refusal(response) {
  try {
    return (await response.json()).error ?? response.statusText;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

function classifyPath() {
  return `v1/models/${encodeURIComponent($("model").value)}/classify?top_k=${TOP_K}`;
}

// One request per image: the server forms the batches.
async function send(files) {
  $("errors").textContent = "";
  await Promise.all([...files].map(sendOne));
}

async function sendOne(file) {
  const path = classifyPath();
  try {
    const response = await ask(path, {
      method: "POST",
      headers: { "content-type": "application/octet-stream" },
      body: file,
    });
    if (response.ok) show(file, path, await response.json());
    else complain(`${file.name}: ${await refusal(response)}`);
  } catch {
    complain(`${file.name}: cannot reach the server`);
  }
}

function complain(text) {
  const errors = $("errors");
  errors.textContent = errors.textContent ? `${errors.textContent}\n${text}` : text;
}

const percent = (probability) => `${(100 * probability).toFixed(1)} %`;

function show(file, path, answer) {
  const item = $("answer").content.firstElementChild.cloneNode(true);
  const image = item.querySelector("img");
  image.src = URL.createObjectURL(file);
  image.alt = file.name;
  const { predictions } = answer.results[0];
  item.querySelector("h3").textContent = file.name;
  item.querySelector(".bars").append(...predictions.map(bar));
  showTiming(item, answer.timing_ms);
  showCurl(item, file, path);
  $("answers").prepend(item);
  for (const old of [...$("answers").children].slice(MOST_ANSWERS)) {
    URL.revokeObjectURL(old.querySelector("img").src);
    old.remove();
  }
  $("none").hidden = true;
  const [best] = predictions;
  $("latest").textContent = `${file.name}: ${best.label}, ${percent(best.probability)}`;
}

function bar({ label, probability }) {
  const item = element("li");
  const track = element("span", "", "track");
  const filled = element("div", "", "bar");
  filled.style.width = `${100 * probability}%`;
  track.append(filled);
  const name = element("span", label, "label");
  name.title = label;
  item.append(name, track, element("span", percent(probability), "value"));
  return item;
}

function showTiming(item, timing) {
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

function showCurl(item, file, path) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const url = new URL(path, document.baseURI).href;
  const line = `curl --data-binary ${quoted(`@${file.name}`)} -H 'content-type: application/octet-stream' ${quoted(url)}`;
  item.querySelector("code").textContent = line;
  const button = item.querySelector("button");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(line);
      button.textContent = "Copied";
    } catch {
      // Browsers deny the clipboard to pages over plain HTTP from another host.
      getSelection().selectAllChildren(item.querySelector("code"));
      button.textContent = "Selected";
    }
  });
}

function takeDrops() {
  const drop = $("drop");
  $("files").addEventListener("change", async (event) => {
    await send(event.target.files);
    event.target.value = ""; // so that the same image can be sent again
  });
  for (const kind of ["dragover", "drop"]) {
    // On the whole page: an image dropped outside the field must not replace it.
    addEventListener(kind, (event) => event.preventDefault());
  }
  addEventListener("dragover", () => drop.classList.add("over"));
  addEventListener("dragleave", () => drop.classList.remove("over"));
  addEventListener("drop", (event) => {
    drop.classList.remove("over");
    send(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => send(event.clipboardData.files));
}

async function listModels() {
  const response = await ask("v2/repository/index", { method: "POST" });
  if (!response.ok) throw new Error(await refusal(response));
  const models = await response.json();
  $("model").replaceChildren(...models.map(({ name }) => new Option(name, name)));
  $("models").hidden = models.length < 2;
  return models.map(({ name }) => name);
}

async function serverState() {
  const response = await ask("v2/health/ready");
  return response.ok ? "ready" : refusal(response);
}

function offerPad() {
  $("draw").hidden = $("model").value !== DIGITS;
}

async function connect() {
  try {
    const names = await listModels();
    offerPad();
    $("state").textContent = `${names.length > 1 ? `${names.length} models` : names[0]}: ${await serverState()}`;
  } catch (error) {
    $("state").textContent = error.message;
  }
}

async function start() {
  takeDrops();
  drawingPad($("pad"), $("draw"), (drawing) => send([drawing]));
  $("model").addEventListener("change", offerPad);
  askForKey($("entry"), connect);
  await connect();
  watchTraffic({
    rate: $("rate"),
    line: $("rates").querySelector("polyline"),
    most: $("most"),
    batches: $("batches"),
    sizes: $("sizes"),
  });
}

start();
