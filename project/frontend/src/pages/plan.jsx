import { useAgent, useDefaultRenderTool } from "@copilotkit/react-core/v2";
import { useEffect, useState } from "react";
import { Beside } from "../chat.jsx";

function Call({ name, parameters, status }) {
  return (
    <div className="card call" data-testid="call">
      <code>{name}</code> {parameters?.task} <span className="chip">{status === "complete" ? "done" : "running"}</span>
    </div>
  );
}

function useStep(agent) {
  const [step, setStep] = useState(null);
  useEffect(() => {
    const ended = () => setStep(null);
    const { unsubscribe } = agent.subscribe({
      onStepStartedEvent: ({ event }) => setStep(event.stepName),
      onStepFinishedEvent: ended,
      onRunFinalized: ended,
    });
    return unsubscribe;
  }, [agent]);
  return step;
}

export function Plan(props) {
  useDefaultRenderTool({ render: Call });
  const { agent } = useAgent();
  const step = useStep(agent);
  const { goal, items = [], progress = 0 } = agent.state ?? {};
  return (
    <Beside {...props}>
      <h2>{goal || "No plan yet"}</h2>
      <progress max="100" value={progress} aria-label="Progress" data-testid="progress" />
      <ul className="plan" data-testid="plan">
        {items.map(({ title, hours, done }) => (
          <li key={title} className={done ? "done" : ""}>{title} <small>{hours} h</small></li>
        ))}
      </ul>
      <p className="muted" data-testid="step">{step ? `Now: ${step}` : ""}</p>
    </Beside>
  );
}
