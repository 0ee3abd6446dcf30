// Shows one answer: its label in large type, bars, and one line of time.

import { element, percent } from "./dom.js";

/** "3.1 ms: decode 1.4, model 0.6". */
export function timeLine(timing, batch) {
  const parts = [["decode", timing.decode], ["wait", timing.queue], ["model", timing.compute]];
  const shown = parts.map(([name, ms]) => `${name} ${ms.toFixed(1)}`).join(", ");
  return `${timing.total.toFixed(1)} ms: ${shown}${batch > 1 ? `, in a batch of ${batch}` : ""}`;
}

function bar({ label, probability }) {
  const item = element("li");
  const track = element("span", "", "track");
  const filled = element("span", "", "bar");
  filled.style.width = `${100 * probability}%`;
  track.append(filled);
  item.append(element("span", label, "name-of"), element("span", percent(probability), "value"), track);
  return item;
}

const LIKELIER_THAN_NOT = 0.5;

/** The label of an answer; of a model whose images may have several labels, or none, all of them. */
function labelOf(predictions, several) {
  if (!several) return predictions[0].label;
  const labels = predictions.filter(({ probability }) => probability >= LIKELIER_THAN_NOT).map(({ label }) => label);
  return labels.join(", ") || "no label";
}

/** Fill an article with an answer, an error or that it waits. */
export function fill(article, { name, predictions, timing, batch, error, several, hint, said }) {
  article.classList.toggle("failed", Boolean(error));
  article.querySelector(".name").textContent = name;
  article.querySelector(".label").textContent = predictions?.length
    ? labelOf(predictions, several)
    : error ? "no answer" : "…";
  article.querySelector(".bars").replaceChildren(...(predictions ?? []).map(bar));
  article.querySelector(".time").textContent = timing ? timeLine(timing, batch) : said ? "" : (error ?? hint ?? "waiting");
}
