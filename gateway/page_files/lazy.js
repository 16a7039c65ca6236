// Libraries that most answers do without: loaded when one is first needed, and not again drawn what is known.

const KEPT = 200; // drawings; an answer that grows is drawn for every frame, most of it as it was

/**
 * Return what fills an element with a drawing of a text.
 *
 * `load` imports the library; `draw(library, text, kind)` returns nodes, or null where it cannot. The element
 * shows the text until the library is there, and where there is no drawing.
 */
export function filler(load, draw) {
  const drawings = new Map(); // fragments by kind and text, those used last at the end
  let library = null;
  let loading = null;

  function drawing(text, kind) {
    const key = `${kind}\n${text}`;
    const known = drawings.has(key) ? drawings.get(key) : attempt(text, kind);
    drawings.delete(key);
    drawings.set(key, known);
    if (drawings.size > KEPT) drawings.delete(drawings.keys().next().value);
    return known?.cloneNode(true);
  }

  /** Draw anew; null where the library refuses the text. */
  function attempt(text, kind) {
    try {
      const nodes = draw(library, text, kind);
      if (!nodes) return null;
      const fragment = document.createDocumentFragment();
      fragment.append(...nodes);
      return fragment;
    } catch {
      return null;
    }
  }

  async function fill(element, text, kind) {
    if (!library) {
      element.textContent = text;
      loading ??= load().catch(() => null); // then the text stays, on this page
      library ??= await loading;
    }
    const drawn = library && drawing(text, kind);
    if (drawn) element.replaceChildren(drawn);
    else element.textContent = text;
  }

  return fill;
}
