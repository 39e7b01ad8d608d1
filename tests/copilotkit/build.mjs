// Bundles the example with the older CopilotKit of this folder: node build.mjs <folder>
import { build } from "esbuild";
import { dirname, join, resolve as resolvePath } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const EXAMPLE = resolvePath(HERE, "../../project/frontend/src");

const older = {
  name: "older",
  setup({ onResolve, resolve }) {
    onResolve({ filter: /^[^./]/ }, ({ path, importer, kind }) => {
      if (!importer.startsWith(EXAMPLE)) return undefined;
      return resolve(path === "@copilotkit/react-core/v2" ? "./single.jsx" : path, { resolveDir: HERE, kind });
    });
  },
};

await build({
  entryPoints: { main: join(EXAMPLE, "main.jsx") },
  absWorkingDir: HERE,
  outdir: process.argv[2],
  bundle: true,
  format: "esm",
  splitting: true,
  jsx: "automatic",
  target: "es2022",
  define: { "process.env.NODE_ENV": '"production"' },
  loader: { ".woff": "file", ".woff2": "file", ".ttf": "file" },
  chunkNames: "chunks/[name]-[hash]",
  assetNames: "assets/[name]-[hash]",
  plugins: [older],
  logLevel: "warning",
});
