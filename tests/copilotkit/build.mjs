// Bundles the example with the older CopilotKit of this folder: node build.mjs <folder>
import { build } from "esbuild";
import { dirname, join, resolve as resolvePath } from "node:path";
import { fileURLToPath } from "node:url";
import { bundle } from "../../project/frontend/bundle.mjs";

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
  ...bundle,
  plugins: [older],
});
