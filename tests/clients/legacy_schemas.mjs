// Reads a JSON list of events; answers for each with null, or with why client 0.0.59 cannot parse it.
import { EventSchemas } from "core-legacy";

let text = "";
for await (const piece of process.stdin) text += piece;
const verdicts = JSON.parse(text).map((event) => {
  const parsed = EventSchemas.safeParse(event);
  return parsed.success ? null : parsed.error.issues.map((issue) => `${issue.path.join("/")}: ${issue.message}`).join("; ");
});
process.stdout.write(JSON.stringify(verdicts));
