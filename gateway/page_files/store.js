// What this browser keeps for the page, and nobody else sees: values as JSON, under names of ours.

const PREFIX = "outrider.";

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

/** Return the names that begin so. */
export function namesFrom(beginning) {
  try {
    const names = Object.keys(localStorage).filter((each) => each.startsWith(PREFIX + beginning));
    return names.map((each) => each.slice(PREFIX.length));
  } catch {
    return [];
  }
}
