import { useRenderTool } from "@copilotkit/react-core/v2";
import { z } from "zod";
import { Chat } from "../chat.jsx";

function Delegation({ parameters, status, result }) {
  return (
    <div className="card delegation" data-testid="delegation">
      <strong>{parameters?.to}</strong> <span className="chip">{status === "complete" ? "done" : "working"}</span>
      <div className="muted">{parameters?.task}</div>
      {status === "complete" && <div>{result}</div>}
    </div>
  );
}

export function Desk(props) {
  useRenderTool({ name: "delegate", parameters: z.object({ to: z.string(), task: z.string() }), render: Delegation });
  return <Chat {...props} />;
}
