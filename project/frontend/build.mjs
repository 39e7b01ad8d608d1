// Bundles the example for production: `npm run build`. With shared chunks, since what draws diagrams and code loads late.
import { build } from "esbuild";
import { rm } from "node:fs/promises";
import { bundle } from "./bundle.mjs";

const outdir = new URL("../static/copilotkit_demo/", import.meta.url).pathname;

await rm(outdir, { recursive: true, force: true });
await build({
  entryPoints: { main: "src/main.jsx" },
  absWorkingDir: new URL(".", import.meta.url).pathname,
  outdir,
  ...bundle,
  minify: true,
});
