// CopilotKit's own runtime in front of agents of the site; stdin: {url, headers, agents}, stdout: its port.
// It keeps threads in memory, as it does unless it is told otherwise.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { HttpAgent } from "@ag-ui/client";
import { CopilotRuntime, InMemoryAgentRunner, createCopilotRuntimeHandler } from "@copilotkit/runtime/v2";
import { createCopilotNodeHandler } from "@copilotkit/runtime/v2/node";

const { url, headers, agents } = JSON.parse(readFileSync(0, "utf8"));
const runtime = new CopilotRuntime({
  runner: new InMemoryAgentRunner(),
  agents: Object.fromEntries(agents.map((name) => [name, new HttpAgent({ url: `${url}/agui/agents/${name}`, headers })])),
});
const handler = createCopilotNodeHandler(createCopilotRuntimeHandler({ runtime, basePath: "/copilotkit" }));
const server = createServer(handler);
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
