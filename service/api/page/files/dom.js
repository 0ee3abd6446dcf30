// Small helpers for elements and text.

export const $ = (id) => document.getElementById(id);

/** A new element with text and a class. */
export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

export const percent = (probability) => `${(100 * probability).toFixed(1)} %`;

/** Offer a blob as a download. */
export function save(name, blob) {
  const link = element("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Add to the list of errors. */
export const complain = (text) => $("errors").append(element("li", text));
