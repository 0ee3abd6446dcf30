// The page at /: an image on a stage, its answer beside it, and everything that can be asked of it.

import { fill } from "./answer.js";
import * as api from "./api.js";
import { ask, askForKey, hasKey } from "./ask.js";
import * as burst from "./burst.js";
import * as camera from "./camera.js";
import { UNREACHABLE, bodyOf, classify, fitting, known, modelsAreKnown, pathOf, post, refusal } from "./classify.js";
import * as clip from "./clip.js";
import { $, complain, element, percent } from "./dom.js";
import { look, lookExactly } from "./look.js";
import { drawingPad } from "./pad.js";
import * as share from "./share.js";
import * as sheet from "./sheet.js";
import { watchState } from "./state.js";
import { trafficView } from "./traffic.js";

const AT_ONCE = 6; // requests; browsers open so many connections
const DIGITS = "digits";

const [mainArticle, otherArticle] = document.querySelectorAll("article.answer");
const waiting = []; // answers
let sending = 0;
let era = 0; // of what is asked: the model, and how many labels
let models = [];
let examples = {}; // file names, by the kind of images that a model takes
let current = null; // the answer on the stage: {files, url, name, predictions, ...}
let turns = 0; // of the stage: what was asked for last is what it shows
let pad;

const chosen = () => models.find(({ name }) => name === $("model").value);
const path = (model = chosen(), topK = $("top-k").value) =>
  pathOf(model.name, Math.min(topK, model.classes)) + (model.multi_label ? "&threshold=0" : "");

/** Ask for an answer's labels, and keep them or the error in it. */
async function askFor(answer, model = chosen()) {
  const address = path(model);
  try {
    const { results, timing_ms: timing, batch_size: batch } = await classify(address, ...answer.files);
    Object.assign(answer, { predictions: results[0].predictions, timing, batch });
    delete answer.error;
  } catch (error) {
    delete answer.predictions;
    answer.error = error.message;
  }
}

// One request per image or clip: the server forms the batches.
async function send(chosenFiles) {
  const each = clip.takesClips(chosen()) ? await clip.clipsOf(chosenFiles) : (await Promise.all(chosenFiles.map(fitting))).map((file) => [file]);
  if (!each.length) return;
  if (!sending) $("errors").replaceChildren();
  camera.stop();
  const answers = each.map(sheet.add);
  if (!answers.includes(current)) stage(answers[0]);
  queue(answers);
}

function queue(answers) {
  waiting.push(...answers);
  while (sending < AT_ONCE && waiting.length) next();
}

async function next() {
  sending += 1;
  await known;
  while (waiting.length) {
    const answer = waiting.shift();
    if (!answer.item.isConnected) continue; // removed before its turn
    const asked = era;
    await askFor(answer);
    if (asked !== era) continue; // it is asked again
    if (answer.error) complain(`${answer.name}: ${answer.error}`);
    sheet.settle(answer);
    if (answer === current) showAnswer();
  }
  sending -= 1;
}

/** Put an answer on the stage. */
function stage(answer, drawn = false) {
  if (current?.own) URL.revokeObjectURL(current.url);
  current = answer;
  turns += 1;
  broken = false;
  if (!clip.takesClips(chosen())) $("image").src = answer.url;
  $("image").alt = answer.name;
  $("invitation").hidden = true;
  $("draw").hidden = $("pad-keys").hidden = !drawn;
  view("image");
  if (answer.item) sheet.mark(answer);
  showAnswer();
}

function showAnswer() {
  if (!current || camera.live()) return;
  const name = $("beside").value ? `${chosen().name}: ${current.name}` : current.name;
  const said = $("errors").textContent.includes(current.error); // once is enough
  fill(mainArticle, { ...current, name, several: chosen()?.multi_label, said });
  const [best] = current.predictions ?? [];
  if (best) $("latest").textContent = `${current.name}: ${best.label}, ${percent(best.probability)}`;
  if (best) api.describe(current.files.map(({ name }) => name), path());
  share.remember(chosen()?.name ?? "", current.example);
  if (best || current.error) compare();
  if (best && !$("heat").hidden && lookedAt !== current) view(seeing);
  if (best && seeing === "image") view("image"); // in place of which may be another
}

/** Answer what is on the stage by a second model, too. */
async function compare() {
  const model = models.find(({ name }) => name === $("beside").value);
  otherArticle.hidden = $("agreement").hidden = !model;
  if (!model) return;
  const one = current;
  const other = { files: one.files, name: `${model.name}: ${one.name}` };
  await askFor(other, model);
  if (one !== current || model.name !== $("beside").value) return;
  fill(otherArticle, { ...other, several: model.multi_label });
  const [mine, its] = [one, other].map(({ predictions }) => predictions?.[0].label);
  if (!mine || !its) return;
  // Of the models alone: an image's first decoding takes longest.
  const [fast, slow] = [one.timing.compute, other.timing.compute].sort((a, b) => a - b);
  const slower = one.timing.compute > other.timing.compute ? chosen().name : model.name;
  $("agreement").textContent =
    `${mine === its ? "They agree" : "They disagree"}; ${slower} computed ${(slow / fast).toFixed(1)} times as long`;
}

let looking = 0;
let lookedAt = null; // the answer that the map is of
let seeing = "image";
let broken = false; // what the browser made of it
/** Whether the browser shows what is on the stage: it shows no clip, no TIFF, and most no HEIC. */
const isShown = () => !clip.takesClips(chosen()) && !broken;

async function view(asked) {
  const turn = (looking += 1);
  const instead = current?.predictions && $("draw").hidden && !isShown();
  const kind = asked === "image" && instead ? "crop" : asked;
  seeing = kind;
  for (const button of $("views").children) button.setAttribute("aria-pressed", button.dataset.view === kind);
  const drawn = !$("draw").hidden && kind === "image";
  $("pad").hidden = !drawn;
  const clips = clip.takesClips(chosen());
  $("image").hidden = !current || drawn || kind === "crop" || !isShown();
  $("crop").hidden = kind !== "crop";
  clip.stop($("crop"));
  $("heat").hidden = $("looking").hidden = !["heat", "exact"].includes(kind);
  if (!current || kind === "image") return;
  const answer = current;
  const alive = () => turn === looking && answer === current;
  try {
    if (kind === "crop") {
      const model = chosen();
      const response = await post(`v1/models/${encodeURIComponent(model.name)}/pixels`, bodyOf(answer.files));
      const blob = await response.blob();
      if (!alive()) return;
      URL.revokeObjectURL($("crop").src);
      $("crop").src = URL.createObjectURL(blob);
      if (clips) clip.play($("crop"), model.image);
    } else if (!isShown()) {
      $("heat").hidden = true;
      $("looked").textContent = "this browser cannot show the image, so it cannot show a map over it; send a JPEG or PNG";
    } else if (answer.predictions) {
      lookedAt = answer;
      $("heat").getContext("2d").clearRect(0, 0, $("heat").width, $("heat").height);
      $("looked").textContent = kind === "heat" ? "49 masked copies in 7 batches" : "";
      const [best] = answer.predictions;
      if (kind === "exact") {
        await lookExactly($("image"), path(), best, answer.files[0], alive);
        if (alive()) $("looked").textContent = `How much each position contributes to the score of "${best.label}" in the last layer`;
      } else if (await look($("image"), path(chosen(), chosen().classes), best, alive)) {
        $("looked").textContent = `The warmer an area, the more "${best.label}" rests on it (found by covering parts one by one)`;
      }
    }
  } catch (error) {
    complain(`${answer.name}: ${error.message}`);
  }
}

function takeImages() {
  const drop = $("drop");
  $("choose").addEventListener("click", () => $("files").click());
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
  for (const button of $("views").children) button.addEventListener("click", () => view(button.dataset.view));
  $("image").addEventListener("error", () => {
    broken = true;
    if (seeing === "image") view("image");
  });
  const fade = () => ($("heat").style.opacity = $("strength").value / 100);
  $("strength").addEventListener("input", fade);
  fade();
}

/** The model that `--beside` serves with a model, which has its name and more; empty without one. */
function twinOf(name) {
  const [twin] = models.length === 2 ? models.filter((model) => model.name.startsWith(`${name}-`)) : [];
  return twin?.name ?? "";
}

async function listModels() {
  const response = await ask("v1/models");
  if (!response.ok) throw new Error(await refusal(response));
  ({ models } = await response.json());
  const before = $("model").value || share.asked().model;
  const options = () =>
    models.map(({ name, error }) => {
      const option = new Option(name, name);
      option.disabled = error !== "";
      return option;
    });
  $("model").replaceChildren(...options());
  const wanted = models.find(({ name, error }) => name === before && !error);
  const first = wanted ?? models.find((model) => model.default) ?? models.find(({ error }) => !error);
  if (first) $("model").value = first.name;
  const beside = $("beside").options.length ? $("beside").value : twinOf($("model").value);
  $("beside").replaceChildren(new Option("nothing", ""), ...options());
  if (models.some(({ name, error }) => name === beside && !error)) $("beside").value = beside;
  $("models").hidden = $("beside-label").hidden = models.length < 2;
  // What is wrong with the models, known before anything is sent.
  const wrong = models.map(({ name, error, warning }) => error && !error.includes("is not served") ? `${name} is not served: ${error}` : error || warning);
  $("warnings").replaceChildren(...wrong.filter((text) => text).map((text) => element("li", text)));
}

// Where a model's images were decoded, and why not by the GPU; empty where no GPU decodes.
function decoders({ decoded: { gpu = 0, ...others } = {} }) {
  const reasons = Object.entries(others).map(([why, count]) => `${count} (${why})`);
  const byCpu = reasons.length ? `; the CPU: ${reasons.join(", ")}` : "";
  return gpu || byCpu ? `the GPU: ${gpu}${byCpu}` : "";
}

function showModel() {
  const model = chosen();
  const [channels, width, height, frames] = model.image.toReversed();
  const [, device, engine] = model.device.match(/^(.*?)(?: \((.*)\))?$/);
  const facts = {
    Model: model.name,
    Classes: model.classes,
    Scores: model.scores,
    Input: `${frames ? `${frames} frames of ` : ""}${width} × ${height} ${channels === 1 ? "grey" : "RGB"}`,
    Engine: engine ?? device,
    Device: device,
    Precision: model.precision,
    "Largest batch": model.max_batch,
    ...(decoders(model) && { "Decoded by": decoders(model) }),
    ...(model.guess && { Preset: `${model.guess}, a guess` }),
    ...(model.origin && { "Described by": model.origin }),
  };
  $("card").replaceChildren(
    ...Object.entries(facts).map(([name, value]) => {
      const row = element("div");
      row.append(element("dt", name), element("dd", String(value)));
      return row;
    }),
  );
  const most = $("top-k");
  for (const option of most.options) option.disabled = Number(option.value) > model.classes;
  if (most.selectedOptions[0].disabled) {
    most.value = [...most.options].findLast((option) => !option.disabled).value;
  }
  $("clear-pad").hidden = model.name !== DIGITS;
  $("exact").hidden = model.no_maps !== "";
  if (seeing === "exact" && $("exact").hidden) view("heat");
  clip.offer(model);
  showExamples(frames ? "clips" : channels === 1 ? "grey" : "colour");
}

let kindShown = "";
function showExamples(kind) {
  if (kind === kindShown) return;
  kindShown = kind;
  $("examples").replaceChildren(
    ...examples[kind].map((name) => {
      const button = element("button");
      button.type = "button";
      button.title = `Classify ${name}`;
      const image = element("img");
      image.src = `page/examples/${kind}/${name}`;
      image.alt = `Classify ${name}`;
      button.append(image);
      button.addEventListener("click", () => openExample(kind, name));
      return button;
    }),
  );
}

/** Answer an example without a tile of its own. */
async function openExample(kind, name) {
  camera.stop();
  const turn = (turns += 1);
  const response = await fetch(`page/examples/${kind}/${name}`);
  const blob = await response.blob();
  if (turn !== turns) return; // another image was chosen meanwhile
  const drawn = chosen().name === DIGITS;
  const answer = { files: [new File([blob], name, { type: blob.type })], name, example: name, own: true };
  answer.url = URL.createObjectURL(blob);
  stage(answer, drawn);
  if (drawn) {
    await $("image").decode();
    if (answer === current) pad.show($("image"));
  }
  await askFor(answer);
  if (answer.error) complain(`${name}: ${answer.error}`);
  if (answer === current) showAnswer();
}

async function askAgain() {
  showModel();
  era += 1;
  lookedAt = null;
  waiting.length = 0;
  queue(sheet.reset());
  if (current && !current.item && current.example === undefined) {
    await askFor(current);
    showAnswer();
  } else if (!current || current.example) {
    const name = current?.example ?? share.asked().example;
    await openExample(kindShown, examples[kindShown].includes(name) ? name : examples[kindShown][0]);
  }
}

async function connect() {
  try {
    await listModels();
    if (!chosen()) throw new Error("no model is served");
    modelsAreKnown();
    await askAgain();
  } catch (error) {
    const wanted = hasKey() ? "this API key is unknown; enter another key" : "enter the server's API key";
    $("state").textContent = $("entry").hidden ? error.message : wanted;
    $("state").dataset.state = "waiting";
  }
}

/** The server was gone: other models may be served now. */
async function connectAgain() {
  const before = $("model").value;
  await listModels();
  if ($("model").value !== before) return askAgain();
  for (const item of $("errors").querySelectorAll("li")) if (item.textContent.endsWith(UNREACHABLE)) item.remove();
  queue(sheet.failed(UNREACHABLE));
  if (current?.error === UNREACHABLE && !current.item) {
    await askFor(current);
    showAnswer();
  }
}

async function start() {
  takeImages();
  sheet.start((answer) => stage(answer));
  api.start();
  clip.start();
  share.start(() => current, () => (clip.takesClips(chosen()) ? clip.still($("crop")) : isShown() ? $("image") : $("crop")));
  const draw = async (drawing) => {
    const turn = (turns += 1);
    const answer = { files: [drawing], name: "drawing.png", url: URL.createObjectURL(drawing), own: true };
    await askFor(answer);
    if (turn === turns) stage(answer, true); // else the pad was emptied, or another image chosen
  };
  const emptied = () => {
    turns += 1;
    current = null; // what was answered is not what is drawn
    fill(mainArticle, { name: "drawing", hint: "draw a digit" });
    otherArticle.hidden = $("agreement").hidden = true;
  };
  pad = drawingPad($("pad"), draw, emptied);
  $("clear-pad").addEventListener("click", () => {
    camera.stop();
    $("draw").hidden = $("pad-keys").hidden = false;
    view("image");
    pad.clear();
    emptied();
    $("pad").focus();
  });
  camera.start(path, () => (clip.takesClips(chosen()) ? chosen().image[0] : 1), {
    shown: () => {
      view("image");
      otherArticle.hidden = $("agreement").hidden = true;
    },
    hidden: showAnswer,
    seen: (answer) => fill(mainArticle, answer),
  });
  burst.start(() => ({ files: current.files, path: path() }));
  $("model").addEventListener("change", askAgain);
  $("top-k").addEventListener("change", askAgain);
  $("beside").addEventListener("change", showAnswer);
  for (const id of ["open-drawer", "code"]) $(id).addEventListener("click", () => $("drawer").showModal());
  $("code").addEventListener("click", () => $("api-title").scrollIntoView());
  $("close-drawer").addEventListener("click", () => $("drawer").close());
  askForKey($("entry"), connect);
  examples = await (await fetch("page/examples.json")).json();
  await connect();
  watchState(() => chosen()?.name, trafficView(), connectAgain);
}

start();
