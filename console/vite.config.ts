import { defineConfig } from "vitest/config";

const coordinator = process.env["TOOLYARD_URL"] ?? "http://127.0.0.1:7420";

export default defineConfig({
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
  test: { include: ["test/*.test.ts", "test/*.test.tsx"] },
});
