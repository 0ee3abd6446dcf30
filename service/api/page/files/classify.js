// Asks the server for an image's labels.

import { ask } from "./ask.js";

let open;
/** Resolves once the models are known. */
export const known = new Promise((resolve) => (open = resolve));
export const modelsAreKnown = () => open();

/** The path that classifies by a model. */
export const pathOf = (model, topK) => `v1/models/${encodeURIComponent(model)}/classify?top_k=${topK}`;

/** The error message of an answer. */
export async function refusal(response) {
  try {
    return (await response.json()).error ?? response.statusText;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

/** Post a body; the answer's JSON, or an Error with the server's words. */
export async function post(path, body) {
  const headers = body instanceof FormData ? {} : { "content-type": "application/octet-stream" };
  let response;
  try {
    response = await ask(path, { method: "POST", headers, body });
  } catch {
    throw new Error("cannot reach the server");
  }
  if (!response.ok) throw new Error(await refusal(response));
  return response;
}

/** The body of one file, or a form of several. */
export function bodyOf(files) {
  if (files.length === 1) return files[0];
  const form = new FormData();
  for (const file of files) form.append("file", file);
  return form;
}

/** The answer to one file, or to several in one form. */
export async function classify(path, ...files) {
  return (await post(path, bodyOf(files))).json();
}
