// Requests to the server, with its API key if it requires one. The key lasts as long as the tab.

const STORED = "convoy-api-key";

/** Whether the server wanted a key. */
export const hasKey = () => sessionStorage.getItem(STORED) !== null;

/** As fetch; the window gets "keyrequired" if the stored key is missing or rejected. */
export async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = sessionStorage.getItem(STORED);
  if (key) headers.set("x-api-key", key);
  const response = await fetch(path, { ...options, headers });
  const current = sessionStorage.getItem(STORED) === key; // no other request has replaced it
  if (response.status === 401 && current) dispatchEvent(new Event("keyrequired"));
  return response;
}

/** Show `form` when a key is required; call `connect` after each one entered. */
export function askForKey(form, connect) {
  addEventListener("keyrequired", () => {
    form.hidden = false;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const field = form.querySelector("input");
    sessionStorage.setItem(STORED, field.value);
    field.value = "";
    form.hidden = true;
    connect();
  });
}
