// Puts what the gateway's page needs beside it: this package, and the engine that npm installed.
import { cpSync, mkdirSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const page = here("../src/edgewise/gateway/page");
for (const folder of ["lib", "engine"]) rmSync(`${page}/${folder}`, { recursive: true, force: true });
mkdirSync(`${page}/engine`, { recursive: true });
cpSync(here("src"), `${page}/lib`, { recursive: true });
for (const [from, to] of [
  ["@wllama/wllama/esm/index.min.js", "wllama.js"],
  ["@wllama/wllama/esm/single-thread/wllama.wasm", "wllama.wasm"],
  ["@wllama/wllama/LICENCE", "wllama.LICENCE.txt"],
  ["@huggingface/jinja/dist/index.js", "jinja.js"],
  ["@huggingface/jinja/LICENSE", "jinja.LICENSE.txt"],
]) {
  cpSync(here(`node_modules/${from}`), `${page}/engine/${to}`);
}
