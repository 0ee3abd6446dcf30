// The page at /: sends images, shows the model, the answers and the traffic.

import * as answers from "./answers.js";
import * as api from "./api.js";
import { ask, askForKey } from "./ask.js";
import { camera } from "./camera.js";
import { drawingPad } from "./pad.js";
import { watchTraffic } from "./traffic.js";

const AT_ONCE = 6; // requests; browsers open so many connections
const DIGITS = "digits";

const $ = (id) => document.getElementById(id);
const waiting = []; // [file, answer]
let sending = 0;
let models = [];
let examples = {}; // file names, by the kind of images that a model takes
let showReady;
const ready = new Promise((resolve) => (showReady = resolve)); // once the models are known

/** The error message of an answer. */
async function refusal(response) {
  try {
    return (await response.json()).error ?? response.statusText;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

function classifyPath() {
  return `v1/models/${encodeURIComponent($("model").value)}/classify?top_k=${$("top-k").value}`;
}

// One request per image: the server forms the batches.
function send(files) {
  if (!sending) $("errors").replaceChildren();
  for (const file of files) waiting.push([file, answers.add(file)]);
  while (sending < AT_ONCE && waiting.length) next();
}

async function next() {
  sending += 1;
  await ready;
  while (waiting.length) await sendOne(...waiting.shift());
  sending -= 1;
}

async function sendOne(file, answer) {
  if (!answer.item.isConnected) return; // removed before its turn
  const path = classifyPath();
  try {
    const response = await ask(path, {
      method: "POST",
      headers: { "content-type": "application/octet-stream" },
      body: file,
    });
    if (response.ok) answers.show(answer, path, await response.json());
    else answers.fail(answer, await refusal(response));
  } catch {
    answers.fail(answer, "cannot reach the server");
  }
}

function takeDrops() {
  const drop = $("drop");
  $("files").addEventListener("change", (event) => {
    send([...event.target.files]);
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
    send([...event.dataTransfer.files]);
  });
  addEventListener("paste", (event) => send([...event.clipboardData.files]));
}

async function listModels() {
  const response = await ask("v1/models");
  if (!response.ok) throw new Error(await refusal(response));
  ({ models } = await response.json());
  $("model").replaceChildren(
    ...models.map(({ name, error }) => {
      const option = new Option(name, name);
      option.disabled = error !== "";
      return option;
    }),
  );
  $("models").hidden = models.length < 2;
}

/** What is wrong with the models, known before anything is sent. */
function showWarnings() {
  const all = models.map(({ name, error, warning }) =>
    error ? `${name} is not served: ${error}` : warning,
  );
  $("warnings").replaceChildren(
    ...all.filter((text) => text).map((text) => answers.element("li", text)),
  );
}

function showModel() {
  showWarnings();
  const model = models.find(({ name }) => name === $("model").value);
  const [height, width, channels] = model.image;
  const [, device, engine] = model.device.match(/^(.*?)(?: \((.*)\))?$/);
  const facts = {
    Model: model.name,
    Classes: model.classes,
    Input: `${width} × ${height} ${channels === 1 ? "grey" : "RGB"}`,
    Engine: engine ?? device,
    Device: device,
    Precision: model.precision,
    "Largest batch": model.max_batch,
    ...(model.guess && { Preset: `${model.guess}, a guess` }),
  };
  $("card").replaceChildren(
    ...Object.entries(facts).map(([name, value]) => {
      const row = answers.element("div");
      row.append(answers.element("dt", name), answers.element("dd", String(value)));
      return row;
    }),
  );
  const most = $("top-k");
  for (const option of most.options) option.disabled = Number(option.value) > model.classes;
  if (most.selectedOptions[0].disabled) {
    most.value = [...most.options].findLast((option) => !option.disabled).value;
  }
  $("draw").hidden = model.name !== DIGITS;
  showExamples(channels === 1 ? "grey" : "colour");
}

function showExamples(kind) {
  $("examples").replaceChildren(
    ...examples[kind].map((name) => {
      const button = answers.element("button");
      button.type = "button";
      button.title = `Classify ${name}`;
      const image = answers.element("img");
      image.src = `page/examples/${kind}/${name}`;
      image.alt = `Classify ${name}`;
      button.append(image);
      button.addEventListener("click", async () => {
        const blob = await (await fetch(image.src)).blob();
        send([new File([blob], name, { type: blob.type })]);
      });
      return button;
    }),
  );
}

async function serverState() {
  const response = await ask("v2/health/ready");
  return response.ok ? "ready" : refusal(response);
}

async function connect() {
  try {
    await listModels();
    showModel();
    showReady();
    const names = models.length > 1 ? `${models.length} models` : models[0].name;
    $("state").textContent = `${names}: ${await serverState()}`;
  } catch (error) {
    $("state").textContent = error.message;
  }
}

async function start() {
  takeDrops();
  answers.start();
  api.start();
  drawingPad($("pad"), $("draw"), (drawing) => send([drawing]));
  camera($("open-camera"), $("camera"), (still) => send([still]), answers.complain);
  $("model").addEventListener("change", showModel);
  askForKey($("entry"), connect);
  examples = await (await fetch("page/examples.json")).json();
  await connect();
  watchTraffic($);
}

start();
