// Asks the server for an image's labels.

import { ask } from "./ask.js";
import { $ } from "./dom.js";

// A file of fewer is no photograph of more pixels than the server takes.
const SMALL_BYTES = 500_000;

export const UNREACHABLE = "cannot reach the server";

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
    throw new Error(UNREACHABLE);
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

/** A photograph of more pixels than the server takes, or of a kind that the browser alone reads, as a
 * JPEG that it takes; any other file as it is. */
export async function fitting(file) {
  const { accept, dataset } = $("files");
  if (!file.type.startsWith("image/")) return file;
  const isRead = accept.split(",").includes(file.type);
  if (isRead && file.size < SMALL_BYTES) return file;
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    return file; // the server says what is wrong with it
  }
  const scale = Math.min(1, Math.sqrt(dataset.maxPixels / (image.width * image.height)));
  if (isRead && scale === 1) return file;
  const canvas = new OffscreenCanvas(Math.floor(image.width * scale), Math.floor(image.height * scale));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  return new File([await canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 })], file.name, { type: "image/jpeg" });
}

/** The answer to one file, or to several in one form. */
export async function classify(path, ...files) {
  return (await post(path, bodyOf(files))).json();
}
