// Bundles the example for production: `npm run build`. With shared chunks, since what draws diagrams and code loads late.
import { build } from "esbuild";
import { rm } from "node:fs/promises";

const outdir = new URL("../static/copilotkit_demo/", import.meta.url).pathname;

await rm(outdir, { recursive: true, force: true });
await build({
  entryPoints: { main: "src/main.jsx" },
  absWorkingDir: new URL(".", import.meta.url).pathname,
  outdir,
  bundle: true,
  format: "esm",
  splitting: true,
  minify: true,
  jsx: "automatic",
  target: "es2022",
  define: { "process.env.NODE_ENV": '"production"' },
  loader: { ".woff": "file", ".woff2": "file", ".ttf": "file" },
  chunkNames: "chunks/[name]-[hash]",
  assetNames: "assets/[name]-[hash]",
  logLevel: "warning",
});
