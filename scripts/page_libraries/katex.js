// The tree alone: the page makes the elements itself.
export { __renderToDomTree as mathTree } from "katex";
