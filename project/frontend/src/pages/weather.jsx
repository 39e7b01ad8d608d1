import { useRenderTool } from "@copilotkit/react-core/v2";
import { z } from "zod";
import { Chat } from "../chat.jsx";

const SIGNS = { sunny: "☀", cloudy: "☁", rainy: "☂", windy: "⚑" };

function Card({ parameters, status, result }) {
  const found = status === "complete" && result ? JSON.parse(result) : null;
  return (
    <div className={`card weather ${found?.kind ?? "waiting"}`} data-testid="weather-card">
      <span className="sign" aria-hidden="true">{found ? SIGNS[found.kind] : "…"}</span>
      <div>
        <strong>{parameters?.city ?? ""}</strong>
        <div>{found ? `${found.degrees} °C, ${found.kind}, wind ${found.wind} km/h` : "Looking out of the window…"}</div>
      </div>
    </div>
  );
}

export function Weather(props) {
  useRenderTool({ name: "get_weather", parameters: z.object({ city: z.string() }), render: Card });
  return <Chat {...props} />;
}
