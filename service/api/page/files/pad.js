// A pad for drawing a digit, with a pointer or with the keyboard.

const PEN = 22; // pixels of 280: the stroke width of the digits in the training data
const STEP = 10;
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Pass the drawing on `canvas` to `take` as a PNG file while it is drawn, and call `emptied` when a key clears it;
    returns {show, clear}. */
export function drawingPad(canvas, take, emptied) {
  const ink = canvas.getContext("2d");
  let at = { x: canvas.width / 2, y: canvas.height / 2 };
  let down = false;
  let example = false; // an example is shown, which a stroke replaces
  let busy = false;
  let changed = false;
  let cleared = 0; // how often

  function clear() {
    ink.fillStyle = "white";
    ink.fillRect(0, 0, canvas.width, canvas.height);
    ink.strokeStyle = "black";
    ink.lineWidth = PEN;
    ink.lineCap = ink.lineJoin = "round";
    down = example = changed = false;
    cleared += 1;
    labelPen();
  }

  /** Show an example until something is drawn. */
  function show(image) {
    clear();
    ink.drawImage(image, 0, 0, canvas.width, canvas.height);
    example = true;
  }

  // One drawing is under way at a time; strokes meanwhile are in the next one.
  async function send() {
    changed = true;
    if (busy) return;
    busy = true;
    while (changed) {
      changed = false;
      const before = cleared;
      const blob = await new Promise((resolve) => canvas.toBlob(resolve));
      if (before !== cleared) continue; // it is no longer what the pad has
      await take(new File([blob], "drawing.png", { type: "image/png" }));
    }
    busy = false;
  }

  function labelPen() {
    canvas.setAttribute("aria-label", `Drawing pad, pen ${down ? "down" : "up"}`);
  }

  function moveTo(to) {
    if (down) {
      if (example) {
        clear();
        down = true;
      }
      ink.beginPath();
      ink.moveTo(at.x, at.y);
      ink.lineTo(to.x, to.y);
      ink.stroke();
      send();
    }
    at = to;
  }

  const place = (event) => ({
    x: (event.offsetX * canvas.width) / canvas.clientWidth,
    y: (event.offsetY * canvas.height) / canvas.clientHeight,
  });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    at = place(event);
    down = true;
    moveTo(at); // draws a dot
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) moveTo(place(event));
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, () => {
      down = false;
    });
  }

  canvas.addEventListener("keydown", (event) => {
    const inside = (value, size) => Math.min(Math.max(value, 0), size);
    if (event.key in MOVES) {
      const [dx, dy] = MOVES[event.key];
      moveTo({
        x: inside(at.x + dx * STEP, canvas.width),
        y: inside(at.y + dy * STEP, canvas.height),
      });
    } else if (event.key === " ") {
      down = !down;
      moveTo(at);
      labelPen();
    } else if (event.key === "Escape") {
      clear();
      emptied();
    } else {
      return;
    }
    event.preventDefault();
  });
  clear();
  return { show, clear };
}
