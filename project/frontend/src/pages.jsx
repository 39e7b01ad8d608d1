// Every page: its agent, what to try, and what is drawn. The order is that of the menu.
import { Chat } from "./chat.jsx";
import { Booking } from "./pages/booking.jsx";
import { Desk } from "./pages/desk.jsx";
import { Files, accepted } from "./pages/files.jsx";
import { Haiku } from "./pages/haiku.jsx";
import { Plain, plainAgents } from "./pages/plain.jsx";
import { Plan } from "./pages/plan.jsx";
import { RecipePage } from "./pages/recipe.jsx";
import { Refund } from "./pages/refund.jsx";
import { Threads } from "./pages/threads.jsx";
import { Weather } from "./pages/weather.jsx";
import { Writer } from "./pages/writer.jsx";

export const PAGES = [
  {
    id: "chat", title: "Chat", agent: "guide", body: Chat,
    about: "Reload in the middle of an answer, or stop it: the server knows.",
    samples: ["What is behind this page?", "What happens when I reload?"],
  },
  {
    id: "threads", title: "Threads", agent: "echo", body: Threads,
    about: "A list of our own on useThreads: rename, archive, delete.",
    samples: ["A first conversation", "tokens:200 delay_ms:50"],
  },
  {
    id: "tools", title: "Back-end tools", agent: "weather", body: Weather,
    about: "The server calls a tool; the page draws the call while it runs, and its result.",
    samples: ["What is the weather in Lisbon and Oslo?"],
  },
  {
    id: "choose", title: "Human in the loop", agent: "booking", body: Booking,
    about: "The agent waits for what a person chooses in the conversation, across reloads.",
    samples: ["A call about the roof"],
  },
  {
    id: "steps", title: "Steps and state", agent: "plan", body: Plan,
    about: "Agentic generative UI: the page draws what the agent is doing.",
    samples: ["A picnic by the lake"],
  },
  {
    id: "cards", title: "Generated cards", agent: "haiku", body: Haiku,
    about: "Tool-based generative UI: the answer is a component of the page.",
    samples: ["A haiku about a pond"],
  },
  {
    id: "recipe", title: "Shared state", agent: "cook", body: RecipePage,
    about: "You and the agent edit the same recipe.",
    samples: ["Make it vegan", "Add a herb"],
  },
  {
    id: "document", title: "Predictive state", agent: "writer", body: Writer,
    about: "The document follows the arguments of a tool call while they are streamed.",
    samples: ["The server that remembered"],
  },
  {
    id: "thoughts", title: "Reasoning", agent: "thinker", body: Chat,
    about: "The agent thinks before it answers.",
    samples: ["How many seconds has a day?"],
  },
  {
    id: "approval", title: "Interrupts", agent: "refund", body: Refund,
    about: "The run ends with a question; the answer, whenever it comes, goes on from there.",
    samples: ["My teapot arrived broken"],
  },
  {
    id: "subagents", title: "Subagents", agent: "desk", body: Desk,
    about: "Two agents work for a third; the page sees their calls and messages.",
    samples: ["The tide"],
  },
  {
    id: "files", title: "Attachments", agent: "files", body: Files, attachments: accepted,
    about: "Files with the message; the server keeps large ones in its storage.",
  },
  {
    id: "failure", title: "Failures", agent: "fragile", body: Chat,
    about: "The agent breaks in the middle: what it said is kept, the error is told once, the conversation goes on.",
    samples: ["Tell me something", "Try it again"],
  },
  {
    id: "plain", title: "Without a runtime", agent: "plain", body: Plain, agents: plainAgents,
    about: "CopilotKit's chat on a plain HttpAgent, with 20 lines that bring history and Stop.",
    samples: ["tokens:200 delay_ms:50"],
  },
];
