// An answer to keep: a link that reopens it, and a drawing.

import { $, element, percent, save } from "./dom.js";

const WIDTH = 1000;
const HEIGHT = 520;

/** What the address asks for: {model, example}. */
export const asked = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

let says = ""; // of the button: an image of one's own is in no link

/** Put model and example into the address, and say on the button that they are what is copied. */
export function remember(model, example) {
  const kept = new URLSearchParams({ model, ...(example && { example }) });
  history.replaceState(null, "", `#${kept}`);
  says = `Copy link to ${example ? "example" : "model"}`;
  $("link").textContent = says;
}

async function drawing(image, { name, predictions }, time) {
  const canvas = element("canvas");
  [canvas.width, canvas.height] = [WIDTH, HEIGHT];
  const ink = canvas.getContext("2d");
  const style = getComputedStyle(document.body);
  const bar = getComputedStyle(document.querySelector("#right .bar")).backgroundColor;
  ink.fillStyle = style.backgroundColor;
  ink.fillRect(0, 0, WIDTH, HEIGHT);
  const own = [image.naturalWidth ?? image.width, image.naturalHeight ?? image.height];
  const [width, height] = own.map((side) => (side * 440) / Math.max(...own));
  ink.drawImage(image, 40 + (440 - width) / 2, 40 + (440 - height) / 2, width, height);
  ink.fillStyle = style.color;
  ink.font = "800 44px system-ui, sans-serif";
  ink.fillText(predictions[0].label, 520, 100, 440);
  predictions.slice(0, 5).forEach(({ label, probability }, i) => {
    const y = 150 + i * 56;
    ink.fillStyle = style.color;
    ink.font = "18px system-ui, sans-serif";
    ink.fillText(`${label}  ${percent(probability)}`, 520, y, 440);
    ink.fillStyle = bar;
    ink.fillRect(520, y + 10, 440 * probability, 12);
  });
  ink.fillStyle = style.color;
  ink.font = "16px system-ui, sans-serif";
  ink.fillText(`${name} · ${time}`, 520, 470, 440);
  return new Promise((resolve) => canvas.toBlob(resolve));
}

/** Connect the buttons; `current` returns the answer on the stage, and `image` its image or frame. */
export function start(current, image) {
  $("link").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      $("link").textContent = "Copied";
    } catch {
      // Browsers deny the clipboard to pages over plain HTTP from another host.
      $("link").textContent = "It is in the address bar";
    }
    setTimeout(() => ($("link").textContent = says), 2000);
  });
  $("png").addEventListener("click", async () => {
    const answer = current();
    if (!answer?.predictions) return;
    const time = document.querySelector("#right .time").textContent;
    save("answer.png", await drawing(image(), answer, time));
  });
}
