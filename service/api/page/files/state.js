// Whether the chosen model answers: ready, warming up, or gone.

import { ask } from "./ask.js";
import { refusal } from "./classify.js";
import { $ } from "./dom.js";

const EVERY_MS = 1000;

async function look(model) {
  try {
    const response = await ask(`v2/models/${encodeURIComponent(model)}/ready`, {
      signal: AbortSignal.timeout(EVERY_MS),
    });
    if (response.ok) return ["ready", "ready"];
    const words = await refusal(response);
    return [response.status === 503 ? "waiting" : "gone", words];
  } catch {
    return ["gone", "gone: the server does not answer"];
  }
}

/** Show the state of what `model` names, once a second while the page is visible. */
export function watchState(model) {
  async function poll() {
    const name = model();
    if (!document.hidden && name) {
      const [state, words] = await look(name);
      const text = `${name}: ${words}`;
      if ($("state").textContent !== text) $("state").textContent = text;
      $("state").dataset.state = state;
    }
    setTimeout(poll, EVERY_MS);
  }
  poll();
}
