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
    if (response.ok) return ["ready", "ready", true];
    const words = await refusal(response);
    return [response.status === 503 ? "waiting" : "gone", words, true];
  } catch {
    return ["gone", "gone: the server does not answer", false];
  }
}

/** Show the state of what `model` names, once a second while the page is visible; call `returned` when
    a server answers again, which may be another one. */
export function watchState(model, returned) {
  let here = true;
  async function poll() {
    const name = model();
    if (!document.hidden && name) {
      const [state, words, answered] = await look(name);
      // It may have gone meanwhile: then it is called again.
      here = answered && (here || (await returned().then(() => true, () => false)));
      const text = `${name}: ${words}`;
      if ($("state").textContent !== text) $("state").textContent = text;
      $("state").dataset.state = state;
    }
    setTimeout(poll, EVERY_MS);
  }
  poll();
}
