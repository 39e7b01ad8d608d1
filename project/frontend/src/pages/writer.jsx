import { useAgent, useRenderTool } from "@copilotkit/react-core/v2";
import { z } from "zod";
import { Beside } from "../chat.jsx";

const Call = ({ status }) => (
  <div className="card call"><code>write_document</code> <span className="chip">{status === "complete" ? "done" : "writing"}</span></div>
);

export function Writer(props) {
  useRenderTool({ name: "write_document", parameters: z.object({ text: z.string() }), render: Call });
  const { agent } = useAgent();
  return (
    <Beside {...props}>
      <article className={agent.isRunning ? "document writing" : "document"} data-testid="document">
        {agent.state?.document ?? <span className="muted">Nothing is written yet.</span>}
      </article>
    </Beside>
  );
}
