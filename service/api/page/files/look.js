// Where a model looked: how much less sure it is of its label when a part of the image is covered.

import { classify } from "./classify.js";
import { $, element } from "./dom.js";

const GRID = 7; // 49 masked copies, a batch for each row
const SIDE = 320; // pixels of the longer side of a copy
const COVER = 1.5; // squares of the grid that a mask is wide

const blobOf = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));

function copies(image) {
  const scale = Math.min(1, SIDE / Math.max(image.naturalWidth, image.naturalHeight));
  const width = Math.max(GRID, Math.round(image.naturalWidth * scale));
  const height = Math.max(GRID, Math.round(image.naturalHeight * scale));
  const whole = new OffscreenCanvas(width, height).getContext("2d");
  whole.drawImage(image, 0, 0, width, height);
  // The image's own mean: a mask is to say nothing.
  const mean = new OffscreenCanvas(1, 1).getContext("2d");
  mean.drawImage(image, 0, 0, 1, 1);
  const [red, green, blue] = mean.getImageData(0, 0, 1, 1).data;
  return (row, column) => {
    const canvas = element("canvas");
    [canvas.width, canvas.height] = [width, height];
    const ink = canvas.getContext("2d");
    ink.drawImage(whole.canvas, 0, 0);
    ink.fillStyle = `rgb(${red} ${green} ${blue})`;
    const [w, h] = [(width / GRID) * COVER, (height / GRID) * COVER];
    ink.fillRect(((column + 0.5) * width) / GRID - w / 2, ((row + 0.5) * height) / GRID - h / 2, w, h);
    return canvas;
  };
}

/** Draw a map of probabilities lost over the image; `alive` says whether it is still wanted. */
export async function look(image, path, { index, probability }, alive) {
  const masked = copies(image);
  const steps = Array.from({ length: GRID }, () => element("li"));
  $("batches-run").replaceChildren(...steps);
  const lost = new Float64Array(GRID * GRID);
  for (let row = 0; row < GRID; row += 1) {
    steps[row].className = "running";
    const files = await Promise.all(
      Array.from({ length: GRID }, (_, column) => blobOf(masked(row, column))),
    );
    const answer = await classify(path, ...files.map((blob, i) => new File([blob], `${row}-${i}.jpg`)));
    if (!alive()) return false;
    answer.results.forEach(({ predictions }, column) => {
      const found = predictions.find((prediction) => prediction.index === index);
      lost[row * GRID + column] = probability - (found?.probability ?? 0);
    });
    steps[row].className = "done";
    $("looked").textContent = `batch ${row + 1} of ${GRID}: ${(row + 1) * GRID} of ${GRID * GRID} masked copies`;
    draw(lost, image);
  }
  return true;
}

function draw(lost, image) {
  const canvas = $("heat");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const most = Math.max(0.02, ...lost);
  const small = new OffscreenCanvas(GRID, GRID).getContext("2d");
  const pixels = small.createImageData(GRID, GRID);
  lost.forEach((value, i) => {
    const share = Math.max(0, value) / most;
    pixels.data.set([255, 210 - 170 * share, 60 - 40 * share, 255 * share], i * 4);
  });
  small.putImageData(pixels, 0, 0);
  const ink = canvas.getContext("2d");
  ink.imageSmoothingQuality = "high";
  ink.drawImage(small.canvas, 0, 0, canvas.width, canvas.height);
}
