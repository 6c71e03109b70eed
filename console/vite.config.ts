import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { defineConfig } from "vitest/config";

const coordinator = process.env["TOOLYARD_URL"] ?? "http://127.0.0.1:7420";

/** Writes each file compressed beside itself, as the coordinator serves it. */
function compressed(folder: string): void {
  for (const entry of readdirSync(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) compressed(path);
    else if (!entry.name.endsWith(".gz")) writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
  }
}

export default defineConfig({
  plugins: [
    {
      name: "compressed",
      apply: "build",
      writeBundle: (options) => compressed(options.dir ?? "dist"),
    },
  ],
  // Relative addresses, because the console may be served under a path prefix.
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
  },
  server: {
    // A coordinator refuses requests with an `Origin` that is not its own.
    proxy: {
      "/v1": {
        target: coordinator,
        changeOrigin: true,
        configure: (proxy) => proxy.on("proxyReq", (request) => request.removeHeader("origin")),
      },
    },
  },
  test: { include: ["test/*.test.ts", "test/*.test.tsx"], testTimeout: 60_000 },
});
