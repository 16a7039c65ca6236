// Writes gateway/page_files/libraries: each library as one small module, their licences, the sums of all.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const HERE = new URL("./", import.meta.url);
const OUT = new URL("../../gateway/page_files/libraries/", HERE);
const LIBRARIES = ["highlight.js", "katex.js", "markdown-it.js"];
const read = (name) => readFileSync(new URL(name, HERE), "utf8");
const sum = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** Return the bundled modules by name, and the packages that are in them. */
async function bundle() {
  const { outputFiles, metafile } = await build({
    absWorkingDir: HERE.pathname, entryPoints: LIBRARIES, outdir: "out", write: false, metafile: true,
    bundle: true, minify: true, format: "esm", target: "es2022", legalComments: "none",
  });
  const modules = outputFiles.map(({ path, contents }) => [path.split("/").at(-1), contents]);
  const inside = Object.keys(metafile.inputs).map((path) => /^node_modules\/([^/]+)/.exec(path)?.[1]);
  return [Object.fromEntries(modules), [...new Set(inside.filter(Boolean))].sort()];
}

/** Return name, version and licence of a package, as a heading for the licence's text. */
function licence(name) {
  const folder = `node_modules/${name}/`;
  const { version, license } = JSON.parse(read(`${folder}package.json`));
  const file = readdirSync(new URL(folder, HERE)).find((each) => /^licen[cs]e/i.test(each));
  return `${name} ${version} (${license})\n\n${read(folder + file).trim()}\n`;
}

const [modules, packages] = await bundle();
const files = { ...modules, "LICENSES.txt": Buffer.from(packages.map(licence).join(`\n${"-".repeat(72)}\n\n`)) };
const locked = JSON.parse(read("package-lock.json")).packages;
const manifest = {
  packages: Object.fromEntries(
    packages.map((name) => [`${name}@${locked[`node_modules/${name}`].version}`, locked[`node_modules/${name}`].integrity]),
  ),
  files: Object.fromEntries(Object.keys(files).sort().map((name) => [name, sum(files[name])])),
};
rmSync(OUT, { recursive: true, force: true });
mkdirSync(OUT);
for (const [name, bytes] of Object.entries(files)) writeFileSync(new URL(name, OUT), bytes);
writeFileSync(new URL("manifest.json", OUT), `${JSON.stringify(manifest, null, 2)}\n`);
