// Changes what differs and nothing else, so that a page that grows by a word is not laid out anew.

/** Make these nodes the children of an element behind the first `from`; those that are the same already stay. */
export function patch(box, nodes, from = 0) {
  const old = [...box.childNodes].slice(from);
  let same = 0;
  while (same < old.length && same < nodes.length && old[same].isEqualNode(nodes[same])) same += 1;
  for (const node of old.slice(same)) node.remove();
  box.append(...nodes.slice(same));
}
