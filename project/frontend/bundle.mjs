// How the example is bundled, whichever CopilotKit it is bundled with.
export const bundle = {
  bundle: true,
  format: "esm",
  splitting: true,
  jsx: "automatic",
  target: "es2022",
  define: { "process.env.NODE_ENV": '"production"' },
  loader: { ".woff": "file", ".woff2": "file", ".ttf": "file" },
  chunkNames: "chunks/[name]-[hash]",
  assetNames: "assets/[name]-[hash]",
  logLevel: "warning",
};
