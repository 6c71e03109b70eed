// A run as a request that makes it again, for a shell, Python and TypeScript.

import { address, type Schemas } from "../api/client";
import { key } from "../api/session";

/** The request. Context, metadata and files are not in it, because the API does not return them. */
function request(run: Schemas["Run"], only?: string): object {
  const calls = (run.calls ?? []).filter(
    (call) => !call.asked_by_call_id && (only === undefined || call.call_id === only),
  );
  return {
    ...(run.tenant ? { tenant: run.tenant } : {}),
    calls: calls.map((call) => ({ call_id: call.call_id, tool: call.tool, arguments: call.arguments || "{}" })),
  };
}

function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

export function asCurl(run: Schemas["Run"], only?: string): string {
  const auth = key.value ? ` \\\n  -H "authorization: Bearer $TOOLYARD_KEY"` : "";
  const body = JSON.stringify(request(run, only), null, 2);
  return `curl -sN ${quote(address("/v1/runs"))}${auth} \\\n  -H 'content-type: application/json' -H 'accept: text/event-stream' \\\n  -d ${quote(body)}\n`;
}

export function asPython(run: Schemas["Run"], only?: string): string {
  const auth = key.value ? `, "authorization": "Bearer " + os.environ["TOOLYARD_KEY"]` : "";
  // A JSON text in a raw string would end at a quote, so it is a literal of Python's, whose escapes are those of JSON.
  const body = JSON.stringify(JSON.stringify(request(run, only)));
  return `import json, os, urllib.request

body = json.loads(${body})
request = urllib.request.Request(
    ${JSON.stringify(address("/v1/runs"))},
    json.dumps(body).encode(),
    {"content-type": "application/json"${auth}},
)
print(json.load(urllib.request.urlopen(request))["run"]["run_id"])
`;
}

export function asTypeScript(run: Schemas["Run"], only?: string): string {
  const auth = key.value ? `, authorization: \`Bearer \${process.env.TOOLYARD_KEY}\`` : "";
  return `const response = await fetch(${JSON.stringify(address("/v1/runs"))}, {
  method: "POST",
  headers: { "content-type": "application/json"${auth} },
  body: JSON.stringify(${JSON.stringify(request(run, only), null, 2).replaceAll("\n", "\n  ")}),
});
const { run } = await response.json();
console.log(run.run_id);
`;
}
