import { useInterrupt } from "@copilotkit/react-core/v2";
import { useState } from "react";
import { Chat } from "../chat.jsx";

function Question({ interrupt, resolve, cancel }) {
  const [amount, setAmount] = useState(40);
  const [sent, setSent] = useState(false);
  const send = (how) => { setSent(true); how(); };
  return (
    <form className="card question" data-testid="question" onSubmit={(event) => { event.preventDefault(); send(() => resolve({ approved: true, amount })); }}>
      <strong>{interrupt.message}</strong>
      <label>Amount in € <input type="number" min="0" max="40" value={amount} onChange={(event) => setAmount(Number(event.target.value))} /></label>
      <div className="choices">
        <button className="primary" disabled={sent}>Approve</button>
        <button type="button" className="quiet" disabled={sent} onClick={() => send(() => resolve({ approved: false }))}>Refuse</button>
        <button type="button" className="quiet" disabled={sent} onClick={() => send(() => cancel())}>Cancel</button>
      </div>
    </form>
  );
}

export function Refund(props) {
  useInterrupt({ render: ({ interrupt, resolve, cancel }) => <Question key={interrupt.id} {...{ interrupt, resolve, cancel }} /> });
  return <Chat {...props} />;
}
