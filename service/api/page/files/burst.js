// Load that can be seen: a stream of images, and the batches that they join.

import { classify } from "./classify.js";
import { $ } from "./dom.js";

const IMAGES = 200;
// From which image on, requests in flight at once, and images in each: browsers open six connections.
const RAMP = [[0, 1, 1], [12, 2, 1], [32, 6, 1], [62, 6, 2], [98, 6, 4], [146, 6, 8]];
const MOST = 8; // squares that a column has room for

const seen = []; // {own, batch}

function draw() {
  const canvas = $("lanes");
  const wide = Math.round(canvas.clientWidth * devicePixelRatio) || canvas.width;
  if (canvas.width !== wide) canvas.width = wide;
  const ink = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  const step = canvas.height / (MOST + 1);
  ink.clearRect(0, 0, canvas.width, canvas.height);
  const columns = Math.floor(canvas.width / step);
  seen.slice(-columns).forEach(({ own, batch }, i) => {
    for (let n = 0; n < Math.min(batch, MOST); n += 1) {
      ink.fillStyle = n < own ? style.color : style.borderTopColor;
      ink.beginPath();
      ink.roundRect(i * step, canvas.height - (n + 1) * step, step - 3, step - 3, 3);
      ink.fill();
    }
  });
}

/** Send `IMAGES` copies of what `take` returns as {files, path}; more at once as time goes by. */
async function send(take) {
  const { files, path } = take();
  seen.length = 0;
  $("lanes").hidden = false;
  let left = IMAGES;
  let most = 1;
  let failed = "";
  const begun = performance.now();
  const one = async (own) => {
    while (left > 0 && !failed) {
      const [, workers, each] = RAMP.findLast(([from]) => from <= IMAGES - left);
      if (own >= workers) {
        await new Promise((resolve) => setTimeout(resolve, 20));
        continue;
      }
      const count = files.length > 1 ? 1 : Math.min(each, left); // frames of a clip fill a form
      left -= count;
      try {
        const { batch_size: batch } = await classify(path, ...Array(count).fill(files).flat());
        seen.push({ own: count, batch });
        most = Math.max(most, batch);
        $("said").textContent = `${IMAGES - left} of ${IMAGES} images; the largest batch so far: ${most}`;
        draw();
      } catch (error) {
        failed = error.message;
      }
    }
  };
  await Promise.all(Array.from({ length: RAMP.at(-1)[1] }, (_, own) => one(own)));
  const seconds = (performance.now() - begun) / 1000;
  $("said").textContent =
    failed || `${IMAGES} images in ${seconds.toFixed(2)} s, ${(IMAGES / seconds).toFixed(0)} per second; largest batch: ${most}`;
}

/** Connect the button. */
export function start(take) {
  const button = $("burst");
  button.addEventListener("click", async () => {
    button.disabled = true;
    await send(take);
    button.disabled = false;
  });
  addEventListener("resize", draw);
}
