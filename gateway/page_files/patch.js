// Changes what differs and nothing else, so that a page that grows by a word is not laid out anew.

/** Make these nodes the children of an element; those that are the same already stay. */
export function patch(box, nodes) {
  const old = [...box.childNodes];
  let same = 0;
  while (same < old.length && same < nodes.length && old[same].isEqualNode(nodes[same])) same += 1;
  for (const node of old.slice(same)) node.remove();
  box.append(...nodes.slice(same));
}
