// Requests to the server, with its API key where it wants one. The key is kept as long as the tab.

const KEPT = "convoy-api-key";

/** As fetch; "keywanted" happens where the server takes no key, or not this one. */
export async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = sessionStorage.getItem(KEPT);
  if (key) headers.set("x-api-key", key);
  const response = await fetch(path, { ...options, headers });
  const wanted = response.status === 401 && sessionStorage.getItem(KEPT) === key; // still the same
  if (wanted) dispatchEvent(new Event("keywanted"));
  return response;
}

/** Show `form` when a key is wanted; `go` is called with every one that is entered. */
export function askForKey(form, go) {
  addEventListener("keywanted", () => {
    form.hidden = false;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const field = form.querySelector("input");
    sessionStorage.setItem(KEPT, field.value);
    field.value = "";
    form.hidden = true;
    go();
  });
}
