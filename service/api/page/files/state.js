// Whether the chosen model answers, and its traffic: ready, warming up, or gone.

import { ask } from "./ask.js";
import { refusal } from "./classify.js";
import { $ } from "./dom.js";

const EVERY_MS = 1000;

async function look(model) {
  try {
    const response = await ask(`v1/models/${encodeURIComponent(model)}/traffic`, {
      signal: AbortSignal.timeout(EVERY_MS),
    });
    if (response.ok) return ["ready", "ready", await response.json()];
    const words = await refusal(response);
    return [response.status === 503 ? "waiting" : "gone", words, {}];
  } catch (error) {
    if (error.name === "TimeoutError") return ["waiting", "slow: no answer within a second", null];
    return ["gone", "gone: the server does not answer", null];
  }
}

/** Ask once a second, while the page is visible, for the state of what `model` names, and pass its traffic
    to `show`, null where there is none; call `returned` when a server answers again, which may be another one. */
export function watchState(model, show, returned) {
  let here = true;
  async function poll() {
    const name = model();
    if (!document.hidden && name) {
      const [state, words, traffic] = await look(name);
      // It may have gone meanwhile: then it is called again.
      here = traffic !== null && (here || (await returned().then(() => true, () => false)));
      const text = `${name}: ${words}`;
      if ($("state").textContent !== text) $("state").textContent = text;
      $("state").dataset.state = state;
      show(name, state === "ready" ? traffic : null);
    }
    setTimeout(poll, EVERY_MS);
  }
  poll();
}
