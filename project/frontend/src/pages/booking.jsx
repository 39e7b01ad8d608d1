import { useHumanInTheLoop } from "@copilotkit/react-core/v2";
import { z } from "zod";
import { Chat } from "../chat.jsx";

function Slots({ args, status, respond, result }) {
  const chosen = result ? JSON.parse(result).slot : undefined;
  return (
    <div className="card" data-testid="slots">
      <strong>{args.topic}: when?</strong>
      <div className="choices">
        {(args.slots ?? []).map((slot) => (
          <button
            key={slot} type="button" className={slot === chosen ? "primary" : "quiet"}
            disabled={status !== "executing"} onClick={() => respond({ slot })}
          >
            {slot}
          </button>
        ))}
        <button
          type="button" className={chosen === null ? "primary" : "quiet"}
          disabled={status !== "executing"} onClick={() => respond({ slot: null })}
        >
          None of these
        </button>
      </div>
    </div>
  );
}

export function Booking(props) {
  useHumanInTheLoop({
    name: "choose_slot", description: "Have the person choose an appointment.",
    parameters: z.object({ topic: z.string(), slots: z.array(z.string()) }), render: Slots,
  });
  return <Chat {...props} />;
}
