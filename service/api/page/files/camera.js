// The camera, where the browser has one and the page may use it: over HTTPS, or from this machine.

import { classify } from "./classify.js";
import { $, complain, percent } from "./dom.js";

const SIDE = 480; // pixels of the longer side that are sent

// In place of the browser's words, by the error's name.
const REASONS = {
  NotFoundError: "this machine has no camera; choose an image instead",
  NotAllowedError: "the browser does not let this page use the camera; allow it next to the address bar",
  NotReadableError: "another program uses the camera; close that program",
};

let video;
let closed;

export const live = () => Boolean(video?.srcObject);

/** Stop the camera. */
export function stop() {
  if (!live()) return;
  for (const track of video.srcObject.getTracks()) track.stop();
  video.srcObject = null;
  $("camera").hidden = true;
  $("open-camera").textContent = "Use the camera";
  closed();
}

function frame() {
  const scale = Math.min(1, SIDE / Math.max(video.videoWidth, video.videoHeight));
  const still = document.createElement("canvas");
  still.width = video.videoWidth * scale;
  still.height = video.videoHeight * scale;
  still.getContext("2d").drawImage(video, 0, 0, still.width, still.height);
  return new Promise((resolve) => still.toBlob(resolve, "image/jpeg", 0.85));
}

// One request is under way at a time; what the camera shows meanwhile is dropped.
async function watch(path, count, seen) {
  const frames = []; // the latest
  while (live()) {
    frames.push(new File([await frame()], "camera.jpg", { type: "image/jpeg" }));
    frames.splice(0, frames.length - count());
    if (frames.length < Math.min(2, count())) continue;
    try {
      const begun = performance.now();
      const { results, timing_ms: timing, batch_size: batch } = await classify(path(), ...frames);
      if (!live()) return;
      const { predictions } = results[0];
      const [best] = predictions;
      seen({ name: "camera", predictions, timing, batch });
      $("camera-label").textContent = `${best.label}  ${percent(best.probability)}`;
      $("camera-time").textContent =
        `${(performance.now() - begun).toFixed(0)} ms, ${timing.total.toFixed(1)} in the server`;
    } catch (error) {
      $("camera-label").textContent = error.message;
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    await new Promise(requestAnimationFrame);
  }
}

/** Connect the button: `path` gives the address to ask, and `count` how many frames it takes; `shown` and `hidden`
    are called when the camera opens and closes, and `seen` gets answers. */
export function start(path, count, { shown, hidden, seen }) {
  closed = hidden;
  if (!navigator.mediaDevices) return;
  video = $("camera").querySelector("video");
  $("open-camera").hidden = false;
  $("open-camera").addEventListener("click", async () => {
    if (live()) {
      stop();
      return;
    }
    try {
      video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
      await video.play();
    } catch (error) {
      complain(`camera: ${REASONS[error.name] ?? error.message}`);
      return;
    }
    shown();
    $("camera").hidden = false;
    $("open-camera").textContent = "Close the camera";
    watch(path, count, seen);
  });
  document.addEventListener("visibilitychange", () => document.hidden && stop());
}
