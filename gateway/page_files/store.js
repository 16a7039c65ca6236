// What this browser keeps for the page, and nobody else sees: values as JSON, under names of ours; and the tab the key.

const PREFIX = "outrider.";

/** Say whether this browser keeps anything for pages; where it does not, even the names of its stores throw. */
export function keepsAnything() {
  try {
    return Boolean(localStorage);
  } catch {
    return false;
  }
}

/** Return what is kept under a name; null where there is nothing, or nothing that can be read. */
export function kept(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name));
  } catch {
    return null;
  }
}

/** Keep a value and say whether there was room for it. */
export function keep(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function forget(name) {
  try {
    localStorage.removeItem(PREFIX + name);
  } catch {
    // this browser keeps nothing for pages
  }
}

/** Return what follows these words in the name that a key of the browser's storage stands for; null for other keys. */
export function restOf(key, beginning) {
  return key?.startsWith(PREFIX + beginning) ? key.slice((PREFIX + beginning).length) : null;
}

/** Return the rests of all names that begin so. */
export function restsOf(beginning) {
  try {
    const rests = Object.keys(localStorage).map((each) => restOf(each, beginning));
    return rests.filter((each) => each !== null);
  } catch {
    return [];
  }
}

// --- The API key, of this tab alone ---

let apiKey = "";
try {
  apiKey = sessionStorage.getItem("key") ?? "";
} catch {
  // this browser keeps nothing for pages: a reload asks for the key again
}

/** Return the API key that was given; "" where none was. */
export const givenKey = () => apiKey;

export function keepKey(given) {
  apiKey = given;
  try {
    sessionStorage.setItem("key", given);
  } catch {
    // as above
  }
}
