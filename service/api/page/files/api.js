// The drawer "Use the API": the last request in three languages.

import { hasKey } from "./ask.js";
import { $ } from "./dom.js";

/** Show how to send the file `name` to `path`. */
export function describe(name, path) {
  const url = new URL(path, document.baseURI).href;
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const literal = JSON.stringify;
  const key = hasKey();
  $("curl").textContent =
    `curl --data-binary ${quoted(`@${name}`)} -H 'content-type: application/octet-stream'` +
    `${key ? ' -H "x-api-key: $KEY"' : ""} ${quoted(url)}`;
  $("python").textContent = [
    "import httpx",
    "",
    `with open(${literal(name)}, "rb") as image:`,
    `    answer = httpx.post(${literal(url)}, files={"file": image}${key ? ', headers={"x-api-key": KEY}' : ""})`,
    'print(answer.json()["results"][0]["predictions"])',
  ].join("\n");
  $("javascript").textContent = [
    'const file = document.querySelector("input[type=file]").files[0];',
    `const answer = await fetch(${literal(url)}, {`,
    `  method: "POST",${key ? ' headers: { "x-api-key": KEY },' : ""} body: file,`,
    "});",
    "console.log((await answer.json()).results[0].predictions);",
  ].join("\n");
}

/** Connect the buttons that copy. */
export function start() {
  for (const button of $("api").querySelectorAll("button")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        // Browsers deny the clipboard to pages over plain HTTP from another host.
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
    });
  }
}
