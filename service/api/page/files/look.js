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
    const most = Math.max(0.02, ...lost);
    draw([...lost].map((value) => Math.max(0, value) / most), GRID, image);
  }
  return true;
}

/** Draw the exact map of a network whose score is a mean over positions: the server has it from one batch. */
export async function lookExactly(image, path, { index }, file, alive) {
  $("batches-run").replaceChildren();
  const { results } = await classify(`${path}&explain=class:${index}`, file);
  if (!alive()) return;
  const [{ values, box }] = results[0].maps;
  const all = values.flat();
  const least = Math.min(...all);
  const spread = Math.max(...all) - least || 1;
  draw(all.map((value) => (value - least) / spread), values[0].length, image, box);
}

/** Draw shares of the warmest colour, row by row, over `box` of the image: left, top, right, bottom. */
function draw(shares, columns, image, box = [0, 0, image.naturalWidth, image.naturalHeight]) {
  const canvas = $("heat");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const rows = shares.length / columns;
  const small = new OffscreenCanvas(columns, rows).getContext("2d");
  const pixels = small.createImageData(columns, rows);
  shares.forEach((share, i) => {
    pixels.data.set([255, 210 - 170 * share, 60 - 40 * share, 255 * share], i * 4);
  });
  small.putImageData(pixels, 0, 0);
  const ink = canvas.getContext("2d");
  ink.imageSmoothingQuality = "high";
  const [left, top, right, bottom] = box;
  ink.drawImage(small.canvas, left, top, right - left, bottom - top);
}
