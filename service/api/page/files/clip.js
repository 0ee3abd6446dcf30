// Clips: which files are the frames of one, and a player of the frames that a model gets.

import { $, element } from "./dom.js";

const FRAME_MS = 125;
const TYPES = "image/gif,application/zip,.zip,video/mp4,video/quicktime,video/webm,video/x-matroska,.mkv";

let playing; // the animation of what is shown
let shown; // the shape of a clip: frames, height, width, channels

/** Whether a model takes clips. */
export const takesClips = (model) => model?.image.length === 4;

/** Offer a model's kind of files, by their names. */
export function offer(model) {
  const clips = takesClips(model);
  const field = $("files");
  field.dataset.images ??= field.accept;
  field.accept = field.dataset.images + (clips ? `,${TYPES}` : "");
  const words = clips ? "Choose a clip" : "Choose images";
  field.ariaLabel = $("choose").textContent = $("invitation").firstElementChild.textContent = words;
  $("burst").textContent = `Send 200 ${clips ? "clips" : "images"}`;
  $("views").hidden = clips;
}

async function isStill(file) {
  return /^image\/(?!gif$)/.test(file.type) && !/ANIM|acTL/.test(await file.slice(0, 4096).text());
}

/** The clips of what was chosen: still images are the frames of one, in the order of their names. */
export async function clipsOf(files) {
  const still = await Promise.all(files.map(isStill));
  const frames = files.filter((_, i) => still[i]);
  frames.sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
  return [...(frames.length ? [frames] : []), ...files.filter((_, i) => !still[i]).map((file) => [file])];
}

/** Play an image of frames one below another. */
export function play(image, shape) {
  stop(image);
  shown = shape;
  const [frames, height, width] = shape;
  $("frame-at").max = frames - 1;
  $("playing").hidden = false;
  Object.assign(image.style, {
    objectFit: "cover",
    aspectRatio: `${width} / ${height}`,
    width: width < height ? "auto" : "100%",
    height: width < height ? "100%" : "auto",
  });
  playing = image.animate(
    { objectPosition: ["0 0", "0 100%"] },
    { duration: frames * FRAME_MS, iterations: Infinity, easing: `steps(${Math.max(2, frames)}, jump-none)` },
  );
  go(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  follow(playing);
}

/** Show no clip any longer. */
export function stop(image) {
  playing?.cancel();
  playing = undefined;
  image.removeAttribute("style");
  $("playing").hidden = true;
}

/** What is shown now, as a canvas. */
export function still(image) {
  const [, height, width] = shown;
  const canvas = element("canvas");
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d").drawImage(image, 0, $("frame-at").value * height, width, height, 0, 0, width, height);
  return canvas;
}

function go(on) {
  if (on) playing.play();
  else playing.pause();
  $("play").textContent = on ? "Pause" : "Play";
}

function follow(one) {
  if (one !== playing) return;
  if (one.playState === "running") $("frame-at").value = Math.floor(one.currentTime / FRAME_MS) % shown[0];
  requestAnimationFrame(() => follow(one));
}

/** Connect the controls. */
export function start() {
  $("play").addEventListener("click", () => go(playing.playState !== "running"));
  $("frame-at").addEventListener("input", () => {
    go(false);
    playing.currentTime = (Number($("frame-at").value) + 0.5) * FRAME_MS;
  });
}
