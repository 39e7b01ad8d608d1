import { useFrontendTool } from "@copilotkit/react-core/v2";
import { z } from "zod";
import { Chat } from "../chat.jsx";

function Card({ args }) {
  return (
    <div className="card haiku" data-testid="haiku" style={{ borderColor: args.colour }}>
      {(args.japanese ?? []).map((line, index) => (
        <p key={line}><span lang="ja-Latn">{line}</span> <small>{args.english?.[index]}</small></p>
      ))}
    </div>
  );
}

export function Haiku(props) {
  useFrontendTool({
    name: "show_haiku", description: "Show a haiku as a card.",
    parameters: z.object({ japanese: z.array(z.string()), english: z.array(z.string()), colour: z.string() }),
    handler: async () => "shown",
    render: Card,
  });
  return <Chat {...props} />;
}
