// The drawer "Use the API": the last request in three languages.

import { hasKey } from "./ask.js";
import { $ } from "./dom.js";

/** Show how to send the files of these names to `path`: one, or the frames of a clip. */
export function describe(names, path) {
  const [name] = names;
  const several = names.length > 1;
  const url = new URL(path, document.baseURI).href;
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const literal = JSON.stringify;
  const key = hasKey();
  const form = names.map((each) => `-F ${quoted(`file=@${each}`)}`).join(" ");
  const body = `--data-binary ${quoted(`@${name}`)} -H 'content-type: application/octet-stream'`;
  $("curl").textContent =
    `curl ${several ? form : body}` +
    `${key ? ' -H "x-api-key: $KEY"' : ""} ${quoted(url)}`;
  const send = (files) => `answer = httpx.post(${literal(url)}, files=${files}${key ? ', headers={"x-api-key": KEY}' : ""})`;
  $("python").textContent = [
    "import httpx",
    "",
    ...(several
      ? [`names = ${literal(names)}`, send('[("file", open(name, "rb")) for name in names]')]
      : [`with open(${literal(name)}, "rb") as image:`, `    ${send('{"file": image}')}`]),
    'print(answer.json()["results"][0]["predictions"])',
  ].join("\n");
  $("javascript").textContent = [
    'const { files } = document.querySelector("input[type=file]");',
    ...(several ? ["const form = new FormData();", 'for (const file of files) form.append("file", file);'] : []),
    `const answer = await fetch(${literal(url)}, {`,
    `  method: "POST",${key ? ' headers: { "x-api-key": KEY },' : ""} body: ${several ? "form" : "files[0]"},`,
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
